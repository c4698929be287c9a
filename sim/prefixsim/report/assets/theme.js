(function () {
  var chosen = null;
  try { chosen = localStorage.getItem("prefixsim-theme"); } catch (e) { /* storage is off */ }
  var dark = window.matchMedia && window.matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = chosen === "dark" || chosen === "light" ? chosen : dark ? "dark" : "light";
})();
