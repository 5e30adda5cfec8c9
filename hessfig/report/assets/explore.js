"use strict";
// Charts in the place of pictures, drawn by plotly when they come near the window. Without this script the pictures stay.
(() => {

const TONES = ["#3f7fd6", "#d95f43", "#2a9a6a", "#a366c9", "#b8860b", "#cf5b9b", "#3a9fb5", "#8a8f98"];
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
const MARKS = ["circle", "diamond", "square", "triangle-up", "cross", "x"];
const PANEL = { narrowest: 270, height: 220, gap: 58, top: 30, cell: 17 };
const HERE = document.currentScript.dataset.library;
const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// The library is asked for once, when the first chart needs it; one file has it inside.
let asked;
function library() {
  asked ??= window.Plotly
    ? Promise.resolve(window.Plotly)
    : new Promise((done, failed) => {
        const script = document.createElement("script");
        script.src = HERE;
        script.onload = () => done(window.Plotly);
        script.onerror = failed;
        document.head.append(script);
      });
  return asked;
}

function tone(index, count) {
  return count <= TONES.length ? TONES[index] : `hsl(${Math.round(265 - (265 * index) / (count - 1))} 62% 52%)`;
}

// Which key has colours: the one with most values; the next has dashes, then marks.
function ranked(keys) {
  return keys.map((_, index) => index).sort((a, b) => keys[b].values.length - keys[a].values.length);
}

function look(chart, at) {
  const [colour, dash, mark] = ranked(chart.keys);
  return {
    color: colour === undefined ? TONES[0] : tone(at[colour], chart.keys[colour].values.length),
    dash: dash === undefined ? "solid" : DASHES[at[dash] % DASHES.length],
    symbol: mark === undefined ? "circle" : MARKS[at[mark] % MARKS.length],
  };
}

const short = (value) => (value === null || value === undefined ? "" : Number(value.toPrecision(4)).toString());

function words(chart, curve, index) {
  const named = curve.at.map((value, key) => `${chart.keys[key].title} ${chart.keys[key].values[value]}`);
  const interval = curve.low?.[index] == null ? "" : `${chart.spread} ${short(curve.low[index])} to ${short(curve.high[index])}`;
  const seeds = curve.seeds?.[index] == null ? "" : `${curve.seeds[index]} seed${curve.seeds[index] === 1 ? "" : "s"}`;
  const value = `${chart.y.title} ${short(curve.y[index]) || "none"}`;
  const x = curve.x[index];
  const place = `${chart.x.title} ${typeof x === "number" ? short(x) : x}`;
  return [...named, place, value, interval, seeds, curve.slope].filter(Boolean).map(escaped).join("<br>");
}

const escaped = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

function bars(curve) {
  if (!curve.low) return undefined;
  const reach = (sign, ends) => curve.y.map((y, index) => (ends[index] === null || y === null ? 0 : sign * (ends[index] - y)));
  return { type: "data", symmetric: false, array: reach(1, curve.high), arrayminus: reach(-1, curve.low), thickness: 1, width: 2 };
}

const axis = (letter, panel) => `${letter}${panel ? panel + 1 : ""}`;

function curves(chart, off) {
  const drawn = chart.curves.map((curve) => {
    const { color, dash, symbol } = look(chart, curve.at);
    return {
      type: "scatter", mode: chart.x.list ? "markers" : "lines+markers", x: curve.x, y: curve.y,
      xaxis: axis("x", curve.panel), yaxis: axis("y", curve.panel), line: { color, dash, width: 1.6 },
      marker: { color, symbol, size: 5 }, error_y: bars(curve) && { ...bars(curve), color }, hoverinfo: "text",
      hovertext: curve.x.map((_, index) => words(chart, curve, index)),
      visible: !curve.at.some((value, key) => off.has(`${key}:${value}`)),
    };
  });
  const guides = chart.guides.map((guide) => ({
    type: "scatter", mode: "lines", x: guide.x, y: guide.y, xaxis: axis("x", guide.panel), yaxis: axis("y", guide.panel),
    line: { color: ink("--muted"), dash: "dash", width: 1 }, hoverinfo: "text", hovertext: guide.x.map(() => guide.name),
    visible: !off.has("guides"),
  }));
  return [...drawn, ...guides];
}

function maps(chart, logs) {
  const shown = (value) => (value === null ? null : logs ? (value > 0 ? Math.log10(value) : null) : value);
  return chart.maps.map((map, panel) => ({
    type: "heatmap", x: map.x, y: map.y, z: map.z.map((line) => line.map(shown)), coloraxis: "coloraxis",
    xaxis: axis("x", panel), yaxis: axis("y", panel), hoverinfo: "text", hoverongaps: false, xgap: 1, ygap: 1,
    hovertext: map.z.map((line, row) => line.map((value, column) => {
      const names = [map.y[row], map.x[column]].map((name) => (typeof name === "number" ? short(name) : name));
      return [names.join(", "), `${chart.value.title} ${short(value)}`, map.words?.[row][column]].filter(Boolean).map(escaped).join("<br>");
    })),
  }));
}

// What stands along x or beside maps, and how long in pixels its longest name is.
const placed = (chart, side) => (chart.kind === "maps" ? chart.maps.map((map) => map[side]) : chart.x.list && side === "x" ? [chart.curves.flatMap((curve) => curve.x)] : []);
const long = (lists) => 10 + 7 * Math.max(0, ...lists.flat().map((name) => (typeof name === "string" ? name.length : 4)));

const cut = (name) => (name.length > 26 ? `${name.slice(0, 25)}…` : name);

// How many columns of panels the width holds, lines being as even as they can be; what names beside and below them take.
function grid(box, chart) {
  const isMap = chart.kind === "maps", count = chart.panels.length, width = box.clientWidth;
  const most = Math.max(1, Math.min(4, Math.floor(width / PANEL.narrowest), isMap && chart.maps[0].x.length > 20 ? 2 : 4));
  const rows = Math.ceil(count / most), columns = Math.ceil(count / rows);
  const left = isMap ? Math.min(150, long(placed(chart, "y"))) : 62, right = isMap ? 80 : 14;
  const across = columns > 1 ? left + 8 : 0;
  const wide = (width - left - right - across * (columns - 1)) / columns;
  const names = placed(chart, "x").map((list) => (isMap ? list : list.map(cut)));
  const isUpright = long(names) > wide / Math.max(1, ...names.map((list) => new Set(list).size));
  const below = isUpright ? Math.min(isMap ? 130 : 150, long(names)) - 14 : 0;
  const tall = isMap ? Math.max(PANEL.height, ...chart.maps.map((map) => Math.min(PANEL.cell * map.y.length, 420))) : PANEL.height;
  return { isMap, count, width, columns, rows, left, right, across, wide, isUpright, below, tall };
}

// Each panel has axes of its own; zooms along x go together.
function layout(box, chart) {
  const { isMap, count, width, columns, rows, left, right, across, wide, isUpright, below, tall } = grid(box, chart);
  const down = PANEL.gap + below, bottom = (isMap ? 26 : 44) + below;
  const height = rows * tall + (rows - 1) * down + PANEL.top + bottom;
  const [inner, high] = [width - left - right, height - PANEL.top - bottom];
  const shared = { gridcolor: ink("--line"), linecolor: ink("--muted"), zeroline: false, automargin: false };
  const found = {
    width, height, margin: { l: left, r: right, t: PANEL.top, b: bottom }, showlegend: false, hovermode: "closest",
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink("--ink"), size: 11 },
    hoverlabel: { bgcolor: ink("--card"), bordercolor: ink("--muted"), font: { color: ink("--ink"), size: 12 }, align: "left", namelength: -1 },
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom", annotations: [],
  };
  chart.panels.forEach((title, panel) => {
    const [row, column] = [Math.floor(panel / columns), panel % columns];
    const x0 = (column * (wide + across)) / inner, y1 = 1 - (row * (tall + down)) / high;
    const isLast = panel + columns >= count;
    const place = { domain: [x0, Math.min(1, x0 + wide / inner)], anchor: axis("y", panel) };
    const side = { domain: [Math.max(0, y1 - tall / high), Math.min(1, y1)], anchor: axis("x", panel) };
    found[axis("xaxis", panel)] = { ...shared, ...place, ...along(chart, chart.x, isMap, isLast), tickangle: isUpright ? 90 : 0, matches: panel && !isMap ? "x" : undefined };
    found[axis("yaxis", panel)] = { ...shared, ...side, ...along(chart, chart.y, isMap, column === 0) };
    if (isMap) Object.assign(found[axis("yaxis", panel)], typeof chart.maps[panel].y[0] === "string" ? { autorange: "reversed" } : {});
    found.annotations.push({ text: escaped(title), x: x0, y: y1, xref: "paper", yref: "paper", xanchor: "left", yanchor: "bottom", showarrow: false, font: { size: 12 } });
  });
  if (isMap) found.coloraxis = { colorscale: "Viridis", colorbar: { thickness: 12, len: Math.min(1, 300 / high), y: 1, yanchor: "top", title: { text: `${chart.logs ? "log10 " : ""}${chart.value.title}`, side: "right" } } };
  return found;
}

// Names along an axis are cut where they are long; what a point is called says them whole.
function along(chart, scale, isMap, isNamed) {
  if (isMap) return { showgrid: false, tickfont: { size: 10 }, dtick: typeof chart.maps[0].x[0] === "string" ? 1 : undefined };
  const type = scale.list ? "category" : scale.log ? "log" : "linear";
  const ticks = scale.list ? { tickvals: placed(chart, "x")[0], ticktext: placed(chart, "x")[0].map(cut) } : {};
  return { type, ...ticks, title: isNamed ? { text: escaped(scale.title), standoff: 6 } : undefined, exponentformat: "power" };
}

function button(text, pressed, click) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = text;
  made.setAttribute("aria-pressed", pressed);
  made.addEventListener("click", () => {
    const now = made.getAttribute("aria-pressed") !== "true";
    made.setAttribute("aria-pressed", now);
    click(now);
  });
  return made;
}

// A row of buttons for each thing that tells curves apart; they switch curves off and on.
function legend(chart, off, redraw) {
  const box = document.createElement("div");
  box.className = "legend";
  chart.keys.forEach((key, index) => {
    const row = document.createElement("div");
    row.setAttribute("role", "group");
    row.setAttribute("aria-label", key.title);
    row.append(Object.assign(document.createElement("span"), { textContent: key.title }));
    const rank = ranked(chart.keys).indexOf(index);
    key.values.forEach((value, at) => {
      const one = button(value, true, (on) => (off[on ? "delete" : "add"](`${index}:${at}`), redraw()));
      if (rank === 0) one.style.setProperty("--tone", tone(at, key.values.length));
      one.dataset.dash = rank === 1 ? DASHES[at % DASHES.length] : "";
      row.append(one);
    });
    if (key.values.length > 2) {
      const all = button("all", true, (on) => {
        row.querySelectorAll("button:not(.all)").forEach((one) => one.setAttribute("aria-pressed", on));
        key.values.forEach((_, at) => off[on ? "delete" : "add"](`${index}:${at}`));
        redraw();
      });
      all.className = "all";
      row.append(all);
    }
    box.append(row);
  });
  return box;
}

function tools(figure, box, chart, off, redraw) {
  const bar = document.createElement("div");
  bar.className = "tools";
  bar.append(button("Chart", chart.whole, (on) => {
    figure.classList.toggle("as-chart", on);
    box.hidden = !on;
    if (on) redraw();
  }));
  const numeric = (letter) => button(`log ${letter}`, chart[letter].log, (on) => ((chart[letter].log = on), redraw()));
  if (chart.kind === "maps") bar.append(button("log colours", chart.logs, (on) => ((chart.logs = on), redraw())));
  else {
    if (!chart.x.list) bar.append(numeric("x"));
    bar.append(numeric("y"));
    if (chart.guides.length) bar.append(button("predicted powers", true, (on) => (off[on ? "delete" : "add"]("guides"), redraw())));
  }
  return bar;
}

function start(box) {
  const chart = JSON.parse(box.querySelector("script").textContent);
  const figure = box.closest("figure"), plot = document.createElement("div"), off = new Set();
  chart.logs = chart.value?.log;
  if (chart.x) chart.x.list = chart.curves.some((curve) => curve.x.some((x) => typeof x === "string"));
  const redraw = () => library().then((Plotly) => {
    if (box.hidden) return;
    const traces = chart.kind === "maps" ? maps(chart, chart.logs) : curves(chart, off);
    Plotly.react(plot, traces, layout(box, chart), { displaylogo: false, responsive: false, modeBarButtons: [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]] });
    box.dataset.drawn = "true";
  });
  figure.querySelector("picture").before(tools(figure, box, chart, off, redraw));
  box.append(plot);
  if (chart.kind === "curves" && chart.keys.length) box.append(legend(chart, off, redraw));
  figure.classList.toggle("as-chart", chart.whole);
  box.hidden = !chart.whole;
  redraw();
  let width = box.clientWidth;
  new ResizeObserver(() => {
    if (!box.hidden && box.clientWidth !== width) (width = box.clientWidth), redraw();
  }).observe(box);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}

const near = new IntersectionObserver((found) => found.filter((one) => one.isIntersecting).forEach((one) => {
  near.unobserve(one.target);
  start(one.target.querySelector(".chart"));
}), { rootMargin: "400px" });
document.querySelectorAll(".chart").forEach((box) => near.observe(box.closest("figure")));

})();
