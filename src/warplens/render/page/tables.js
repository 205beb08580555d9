/**
 * The tables above the timeline: trust, phases, problems.
 * In: facts. Out: elements, and calls when a row is chosen. Real tables: a screen reader reads what the eye sees.
 */

import { byId, element, isolated, swatch } from "./dom.js";
import { counted, grouped } from "./format.js";

const ORDER = ["BAD", "note", "ok"];
const SPOKEN = /** @type {Record<string, string>} */ ({ BAD: "bad", note: "note", ok: "ok" });
const STATISTICS = ["mean", "p50", "p90", "p99"];

/** @param {any} facts */
export function fillTrust(facts) {
  const list = byId("trust");
  const lines = [...facts.trust].sort((a, b) => ORDER.indexOf(a.level) - ORDER.indexOf(b.level));
  if (facts.sampled) lines.unshift({ level: "BAD", label: "sample", text: facts.sampled, brief: "" });
  if (facts.window) {
    const text = `the timeline shows ${facts.window}; the table of phases counts all blocks`;
    lines.unshift({ level: "note", label: "window", text, brief: "" });
  }
  const fine = lines.filter((line) => line.level === "ok" && line.brief);
  for (const line of lines) if (!fine.includes(line)) list.append(trustRow(line.level, line.label, line.text));
  if (fine.length) {
    const row = trustRow("ok", "all else", fine.map((line) => line.brief).join("; "));
    const more = element("details", null, {}, [element("summary", "each of these")]);
    for (const line of fine) more.append(element("p", `${line.label}: ${line.text}`));
    row.lastElementChild?.append(more);
    list.append(row);
  }
}

/**
 * @param {string} level
 * @param {string} label
 * @param {string} text
 */
function trustRow(level, label, text) {
  return element("tr", null, { class: `level-${SPOKEN[level]}` }, [
    element("td", level, { class: "level" }),
    element("th", label, { scope: "row" }),
    element("td", text),
  ]);
}

/**
 * @param {any} facts
 * @param {(site: number) => void} chosen
 * @param {(site: number, hide: boolean) => void} hidden
 */
export function fillPhases(facts, chosen, hidden) {
  const holder = byId("phases");
  facts.groups.forEach((/** @type {any} */ group) => holder.append(phaseTable(facts, group, chosen, hidden)));
  if (!facts.groups.length) holder.append(element("p", "no launch was recorded", { class: "dim" }));
}

/**
 * @param {any} facts
 * @param {any} group
 * @param {(site: number) => void} chosen
 * @param {(site: number, hide: boolean) => void} hidden
 */
function phaseTable(facts, group, chosen, hidden) {
  const units = element("tr", null, {}, [element("th", null, { colspan: "6", "aria-hidden": "true" })]);
  for (const unit of ["cycles", "ns"]) units.append(element("th", unit, { colspan: "4", class: "unit", scope: "colgroup" }));
  const heads = element("tr", null);
  for (const name of ["shown", "site", "kind", "warps", "count", "share"]) heads.append(element("th", name, { scope: "col" }));
  for (let unit = 0; unit < 2; unit++) for (const name of STATISTICS) heads.append(element("th", name, { scope: "col" }));
  const body = element("tbody", null);
  for (const row of group.rows) body.append(phaseRow(facts, row, chosen, hidden));
  const launches = counted(group.launches.length, "launch").replace("launchs", "launches");
  const caption = element("caption", null, {}, [isolated(group.kernel, group.kernel), `  ${launches}`]);
  return element("table", null, { class: "phases" }, [caption, element("thead", null, {}, [units, heads]), body]);
}

/**
 * @param {any} facts
 * @param {any} row
 * @param {(site: number) => void} chosen
 * @param {(site: number, hide: boolean) => void} hidden
 */
function phaseRow(facts, row, chosen, hidden) {
  const site = facts.sites[row.site];
  const part = row.role !== null && row.role === row.warps;
  const made = element("tr", null, { "data-site": String(row.site), class: part ? "part" : "" });
  const cell = element("td", null);
  if (!part) {
    const box = element("input", null, { type: "checkbox", checked: "", "data-hide": String(row.site) });
    box.setAttribute("aria-label", `show ${row.name}`);
    box.addEventListener("change", () => hidden(row.site, !box.checked));
    cell.append(box);
  }
  const button = element("button", null, { type: "button", "data-choose": String(row.site) });
  button.append(...(part ? [] : [swatch(site)]), isolated(row.name, row.name));
  made.addEventListener("click", (event) => {
    if (!(event.target instanceof HTMLInputElement)) chosen(row.site);
  });
  made.append(cell, element("th", null, { scope: "row" }, [button]), element("td", row.kind), element("td", row.warps));
  const whole = grouped(row.count - row.cut);
  made.append(element("td", row.cut ? `${whole}+${grouped(row.cut)}` : whole, { class: "number" }));
  made.append(element("td", row.share === null ? "-" : `${(100 * row.share).toFixed(1)} %`, { class: "number" }));
  for (const unit of ["cycles", "ns"]) {
    for (const name of STATISTICS) {
      const value = row[`${name}_${unit}`];
      made.append(element("td", value === null ? "-" : grouped(Math.round(value)), { class: `number ${unit}` }));
    }
  }
  return made;
}

/**
 * @param {any} facts
 * @param {(problem: number) => void} chosen
 */
export function fillProblems(facts, chosen) {
  const { problems, problem_rows: rows } = facts;
  byId("problem-count").textContent = rows ? `${counted(rows, "problem")}` : "no problems";
  byId("problem-details").open = problems.some((/** @type {any} */ p) => p.severity !== "note");
  const body = byId("problems");
  problems.slice(0, 500).forEach((/** @type {any} */ problem, /** @type {number} */ index) => {
    const where = ["launch", "block", "warp", "sequence"].map((key) => element("td", problem[key] === null ? "" : String(problem[key])));
    const made = element("tr", null, { class: problem.severity === "note" ? "level-note" : "level-bad" }, [
      element("td", problem.severity, { class: "level" }),
      element("td", problem.kind.replaceAll("_", " ")),
      element("td", grouped(problem.count), { class: "number" }),
      ...where,
      element("td", problem.text),
    ]);
    if (problem.block !== null) {
      const button = element("button", "go there", { type: "button", class: "go" });
      button.addEventListener("click", () => chosen(index));
      made.lastElementChild?.append(" ", button);
    }
    body.append(made);
  });
  if (rows > 500) body.append(element("tr", null, {}, [element("td", `${grouped(rows - 500)} more in the file`, { colspan: "8" })]));
}
