"use strict";
// Tables that sort, filter and copy; commands that copy. Without this script everything is there to read.

const number = (cell) => {
  const text = (cell.dataset.value ?? cell.textContent).trim().replace("−", "-");
  return text === "" ? NaN : Number(text);
};
const words = (cell) => cell.textContent.trim();

// By number where both have one, by words where neither has; empty cells come last either way.
function compare(a, b, sign) {
  const [x, y] = [number(a), number(b)];
  if (!Number.isNaN(x) && !Number.isNaN(y)) return sign * (x - y);
  const [s, t] = [words(a), words(b)];
  if (s === "" || t === "") return (s === "") - (t === "");
  return sign * s.localeCompare(t, "en", { numeric: true });
}

function sort(table, column, header) {
  const up = header.getAttribute("aria-sort") !== "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", up ? "ascending" : "descending");
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => compare(a.cells[column], b.cells[column], up ? 1 : -1));
  table.tBodies[0].append(...rows);
}

function makeSortable(table) {
  [...table.tHead.rows[0].cells].forEach((header, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    button.addEventListener("click", () => sort(table, column, header));
    header.append(button);
  });
}

// A row stays when it holds every word, in whichever cells.
function filter(table, text, count) {
  const wanted = text.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const row of table.tBodies[0].rows) {
    const content = [...row.cells].map(words).join(" ").toLowerCase();
    row.hidden = !wanted.every((word) => content.includes(word));
    shown += !row.hidden;
  }
  const all = table.tBodies[0].rows.length;
  const rows = all === 1 ? "row" : "rows";
  count.textContent = shown === all ? `${all} ${rows}` : `${shown} of ${all} ${rows}`;
}

function asCsv(table) {
  const quote = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const rows = [table.tHead.rows[0], ...[...table.tBodies[0].rows].filter((row) => !row.hidden)];
  return rows.map((row) => [...row.cells].map((cell) => quote(cell.dataset.value ?? words(cell))).join(",")).join("\n") + "\n";
}

// The clipboard needs a permission that files may not have: then the text is selected by hand, as before there was one.
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

function copyButton(label, text) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = label;
  button.addEventListener("click", async () => {
    button.textContent = (await copy(text())) ? "Copied" : "Could not copy";
    setTimeout(() => (button.textContent = label), 1500);
  });
  return button;
}

function addTools(box) {
  const table = box.querySelector("table");
  const tools = document.createElement("div");
  const [label, input, count] = ["label", "input", "span"].map((name) => document.createElement(name));
  tools.className = "tools";
  input.type = "search";
  input.addEventListener("input", () => filter(table, input.value, count));
  label.append("Filter ", input);
  count.setAttribute("role", "status");
  tools.append(label, copyButton("Copy as CSV", () => asCsv(table)), count);
  makeSortable(table);
  box.prepend(tools);
  filter(table, "", count);
}

document.querySelectorAll(".data").forEach(addTools);
document.querySelectorAll(".command").forEach((box) => {
  box.append(copyButton("Copy", () => box.querySelector("code").textContent));
});
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => (one.open = true)));
