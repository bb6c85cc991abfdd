"use strict";
// Sorting: a header is a button; numbers are sorted by data-value, the largest first, and what has none comes last.
const said = document.getElementById("said");
const key = (row, column) => row.cells[column].dataset.value;

function sort(header) {
  const table = header.closest("table"), body = table.tBodies[0], column = header.cellIndex;
  const isNumber = header.classList.contains("number");
  const before = header.getAttribute("aria-sort");
  const first = isNumber ? "descending" : "ascending";
  const order = before === first ? (isNumber ? "ascending" : "descending") : first;
  const sign = order === "ascending" ? 1 : -1;
  const compare = (a, b) => {
    if (!isNumber) return sign * a.cells[column].textContent.localeCompare(b.cells[column].textContent, "en",
                                                                         { numeric: true });
    const x = key(a, column), y = key(b, column);
    if (x === undefined || y === undefined) return (x === undefined) - (y === undefined);
    return sign * (Number(x) - Number(y));
  };
  body.append(...[...body.rows].sort(compare));
  for (const each of header.parentElement.cells) each.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", order);
  said.textContent = `Sorted by ${header.textContent.trim()}, ${order}.`;
}

for (const button of document.querySelectorAll("table.sortable thead button"))
  button.addEventListener("click", () => sort(button.closest("th")));

for (const button of document.querySelectorAll("button[data-tree]"))
  button.addEventListener("click", () => {
    const open = button.dataset.tree === "open";
    for (const line of document.querySelectorAll(".tree details")) line.open = open;
    said.textContent = open ? "All lines are open." : "All lines are closed.";
  });
