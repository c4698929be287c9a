"""Where profiles come from: fits of operator tables (`fit`), and the microbenchmark (`measure`, needs torch)."""
