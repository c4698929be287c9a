"use strict";
(function () {
  const root = document.documentElement;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const touch = window.matchMedia("(pointer: coarse)").matches;
  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  // Plotly reads some HTML in names; all text from the run goes through here and stays text.
  const entities = { "&": "&amp;", "<": "&lt;", ">": "&gt;" };
  const safe = (value) => (typeof value === "string" ? value.replace(/[&<>]/g, (c) => entities[c]) : value);
  const color = (k) => css(k < 0 ? "--s" + ((-1 - k) % 7) : "--e" + (k % 6));
  const alpha = (hex, a) => "rgba(" + [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)).join(",") + "," + a + ")";
  const dashes = ["solid", "solid", "longdash", "longdash"];

  function themed(trace) {
    const hue = color(trace.engine);
    const out = Object.assign({}, trace, { name: safe(trace.name) });
    for (const axis of ["x", "y"]) if (Array.isArray(trace[axis])) out[axis] = trace[axis].map(safe);
    if (trace.line) out.line = Object.assign({ color: trace.faint ? alpha(hue, 0.55) : hue }, trace.line);
    if (trace.engine >= 6 && trace.line && !trace.line.dash) out.line.dash = dashes[(trace.engine / 6) | 0] || "dot";
    if (trace.fill) out.fillcolor = alpha(hue, 0.14);
    if (trace.type === "bar" || /markers/.test(trace.mode || "")) out.marker = Object.assign({ color: hue }, trace.marker);
    if (trace.marker && trace.marker.line) out.marker.line = { width: 1, color: css("--bg") };
    if (trace.type === "heatmap") {
      out.colorscale = [[0, css("--panel")], [1, hue]];
      out.colorbar = Object.assign({ thickness: 10, outlinewidth: 0, tickfont: { color: css("--soft") } }, trace.colorbar);
    }
    delete out.engine; delete out.faint;
    return out;
  }

  function layoutOf(figure) {
    const ink = css("--ink"), soft = css("--soft"), grid = css("--grid");
    const layout = JSON.parse(JSON.stringify(figure.layout));
    const narrow = window.innerWidth < 640;
    Object.assign(layout, {
      height: figure.height, autosize: true, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, 'Liberation Sans', 'DejaVu Sans', sans-serif", size: 12, color: ink },
      margin: { l: narrow ? 44 : 56, r: 12, t: 10, b: 44 },
      legend: { orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom", traceorder: "normal", font: { color: ink } },
      hoverlabel: { bgcolor: css("--panel"), bordercolor: css("--line"), font: { color: ink } },
      dragmode: touch ? false : "zoom", showlegend: figure.data.length > 1,
    });
    if (layout.xaxis && layout.xaxis.side === "top") { layout.margin.t = 60; layout.margin.b = 10; layout.legend.y = 0; layout.legend.yanchor = "top"; }
    for (const name of Object.keys(layout)) {
      if (!/^[xy]axis/.test(name)) continue;
      const axis = layout[name];
      Object.assign(axis, { gridcolor: grid, linecolor: css("--line"), zerolinecolor: css("--line"), tickfont: { color: soft }, automargin: true });
      if (axis.title) axis.title = Object.assign({ font: { color: soft, size: 12 }, standoff: 6 }, axis.title);
      for (const list of ["categoryarray", "tickvals", "ticktext"]) if (axis[list]) axis[list] = axis[list].map(safe);
      if (name[0] === "x" && axis.side !== "top") Object.assign(axis, { ticks: "outside", ticklen: 4, tickcolor: "rgba(0,0,0,0)" });
      if (axis.type === "log" && axis.ticktext) {  // labels that would lie over their neighbours are left out
        const least = (narrow ? 0.2 : 0.1) * (axis.range[1] - axis.range[0]);
        let last = -Infinity;
        const room = axis.tickvals.map((v) => Math.log10(v) - last >= least && ((last = Math.log10(v)), true));
        Object.assign(axis, { ticktext: axis.ticktext.map((t, k) => (room[k] ? t : "")), tickangle: 0 });
      }
      if (touch) axis.fixedrange = true;
    }
    return layout;
  }

  const config = { displaylogo: false, responsive: true, scrollZoom: false, displayModeBar: false };

  function draw(figure) {
    const place = document.getElementById("plot-" + figure.id);
    if (place) return window.Plotly.react(place, figure.data.map(themed), layoutOf(figure), config);
  }

  function drawAll() {
    root.removeAttribute("data-drawn");
    let chain = Promise.resolve();
    for (const figure of figures)
      chain = chain.then(() => new Promise((done) => setTimeout(done, 0))).then(() => draw(figure));
    return chain.then(() => root.setAttribute("data-drawn", String(figures.length)));
  }

  // ---- data as CSV and as a table
  function rowsOf(figure, limit) {
    const out = [];
    for (const t of figure.data) {
      if (t.type === "heatmap") {
        for (let r = 0; r < t.y.length; r++) for (let c = 0; c < t.x.length; c++) out.push([t.name, t.x[c], t.y[r], t.z[r][c]]);
      } else {
        for (let i = 0; i < t.x.length; i++) out.push([t.name, t.x[i], t.y[i]].concat(t.customdata ? t.customdata[i] : []));
      }
      if (out.length > limit) break;
    }
    return out;
  }
  const cell = (v) => {
    const text = v === null || v === undefined ? "" : String(v);
    return /[",\n\r]/.test(text) ? '"' + text.replace(/"/g, '""') + '"' : text;
  };
  function save(name, rows) {
    const blob = new Blob([rows.map((r) => r.map(cell).join(",")).join("\r\n") + "\r\n"], { type: "text/csv" });
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name + ".csv";
    document.body.appendChild(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }
  const figureOf = (id) => figures.find((f) => f.id === id);
  const csvOf = (id) => {
    const figure = figureOf(id);
    if (figure) return [figure.columns].concat(rowsOf(figure, Infinity));
    const table = document.getElementById(id);
    return Array.from(table.rows, (row) => Array.from(row.cells).filter((c) => !c.hasAttribute("data-skip"))
      .map((c) => (c.hasAttribute("data-v") ? c.getAttribute("data-v") : c.textContent.trim())));
  };
  window.prefixsimReport = { csv: csvOf };
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-csv]");
    if (button) save(button.getAttribute("data-csv"), csvOf(button.getAttribute("data-csv")));
  });
  document.addEventListener("toggle", (event) => {
    const details = event.target;
    if (!details.open || !details.hasAttribute("data-table") || details.querySelector("table")) return;
    const figure = figureOf(details.getAttribute("data-table"));
    const rows = rowsOf(figure, 500), shown = rows.slice(0, 500);
    const box = document.createElement("div");
    box.className = "tall"; box.tabIndex = 0; box.setAttribute("role", "region"); box.setAttribute("aria-label", figure.title + ", data");
    const table = document.createElement("table"), head = table.createTHead().insertRow();
    for (const name of figure.columns) { const th = document.createElement("th"); th.scope = "col"; th.textContent = name; head.appendChild(th); }
    const body = table.createTBody();
    for (const row of shown) { const tr = body.insertRow(); for (const v of row) tr.insertCell().textContent = v === null ? "" : typeof v === "number" ? String(v) : v; }
    box.appendChild(table);
    if (rows.length > 500) { const p = document.createElement("p"); p.className = "soft"; p.textContent = "The first 500 rows; the CSV has all."; box.appendChild(p); }
    details.appendChild(box);
  }, true);

  // ---- light and dark
  const toggle = document.getElementById("theme");
  const remember = (v) => { try { localStorage.setItem("prefixsim-theme", v); } catch (e) { /* private window */ } };
  const label = () => { toggle.textContent = root.dataset.theme === "dark" ? "Light" : "Dark"; toggle.setAttribute("aria-label", "Switch to " + toggle.textContent.toLowerCase() + " colours"); };
  toggle.hidden = false;
  label();
  toggle.addEventListener("click", () => { root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark"; remember(root.dataset.theme); label(); drawAll(); });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (e) => {
    let chosen = null;
    try { chosen = localStorage.getItem("prefixsim-theme"); } catch (err) { /* private window */ }
    if (!chosen) { root.dataset.theme = e.matches ? "dark" : "light"; label(); drawAll(); }
  });
  drawAll();
})();
