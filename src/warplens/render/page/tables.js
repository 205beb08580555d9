/**
 * The tables above the timeline: trust, phases, problems.
 * In: facts. Out: elements, and calls when a row is chosen. Real tables: a screen reader reads what the eye sees.
 */

import { byId, element, isolated, siteName, swatch } from "./dom.js";
import { counted, grouped } from "./format.js";

const ORDER = ["BAD", "note", "ok"];
const SPOKEN = /** @type {Record<string, string>} */ ({ BAD: "bad", note: "note", ok: "ok" });
const MOST_ROWS = 500;
const STATISTICS = ["mean", "p50", "p90", "p99"];

/** @typedef {{choose: (site: number) => void, hide: (site: number, hide: boolean) => void, role: (warps: string) => void}} PhaseActions */

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
 * @param {PhaseActions} on
 */
export function fillPhases(facts, on) {
  const holder = byId("phases");
  facts.groups.forEach((/** @type {any} */ group) => holder.append(phaseTable(facts, group, on)));
  if (!facts.groups.length) holder.append(element("p", "no launch was recorded", { class: "dim" }));
}

/**
 * @param {any} facts
 * @param {any} group
 * @param {PhaseActions} on
 */
function phaseTable(facts, group, on) {
  const units = element("tr", null, {}, [element("th", null, { colspan: "6", "aria-hidden": "true" })]);
  for (const unit of ["cycles", "ns"]) units.append(element("th", unit, { colspan: "4", class: "unit", scope: "colgroup" }));
  const heads = element("tr", null);
  for (const name of ["shown", "site", "kind", "warps", "count", "share"]) heads.append(element("th", name, { scope: "col" }));
  for (let unit = 0; unit < 2; unit++) for (const name of STATISTICS) heads.append(element("th", name, { scope: "col" }));
  const body = element("tbody", null);
  const most = Math.max(...group.rows.map((/** @type {any} */ row) => row.share ?? 0));
  for (const row of group.rows) body.append(phaseRow(facts, group, row, most, on));
  const launches = counted(group.launches.length, "launch").replace("launchs", "launches");
  const caption = element("caption", null, {}, [isolated(group.kernel, group.kernel), `  ${launches}`]);
  return element("table", null, { class: "phases" }, [caption, element("thead", null, {}, [units, heads]), body]);
}

/**
 * The warps of a label such as "w1-19" as the filter takes them; "" where it names none or leaves some out ("w0,2,4,…").
 * @param {any} group
 * @param {string} label
 */
export function warpsOf(group, label) {
  if (!label.startsWith("w")) return "";
  if (!label.endsWith("…")) return label.slice(1);
  return Object.keys(group.roles).filter((warp) => group.roles[warp] === label).join();
}

/**
 * @param {any} facts
 * @param {any} group
 * @param {any} row
 * @param {number} most the largest share of the table, whose bar is as wide as the column
 * @param {PhaseActions} on
 */
function phaseRow(facts, group, row, most, on) {
  const site = facts.sites[row.site];
  const part = row.role !== null && row.role === row.warps;
  const made = element("tr", null, { "data-site": String(row.site), class: part ? "part" : "" });
  const cell = element("td", null);
  if (!part) {
    const box = element("input", null, { type: "checkbox", checked: "", "data-hide": String(row.site) });
    box.setAttribute("aria-label", `show ${row.name}`);
    box.addEventListener("change", () => on.hide(row.site, !box.checked));
    cell.append(box);
  }
  const button = element("button", null, { type: "button", "data-choose": String(row.site) });
  button.append(...(part ? [] : [swatch(site)]), siteName(row.name));
  made.addEventListener("click", (event) => {
    if (!(event.target instanceof HTMLInputElement)) on.choose(row.site);
  });
  const warps = element("td", row.warps);
  const filter = warpsOf(group, row.warps);
  if (filter) {
    const role = element("button", row.warps, { type: "button", title: "these warps alone" });
    role.addEventListener("click", (event) => {
      event.stopPropagation();
      on.role(filter);
    });
    warps.replaceChildren(role);
  }
  made.append(cell, element("th", null, { scope: "row" }, [button]), element("td", row.kind), warps);
  const whole = grouped(row.count - row.cut);
  made.append(element("td", row.cut ? `${whole}+${grouped(row.cut)}` : whole, { class: "number" }));
  const share = element("td", row.share === null ? "-" : `${(100 * row.share).toFixed(1)} %`, { class: "number share" });
  share.style.setProperty("--site", site.color);
  share.style.setProperty("--share", `${most ? (100 * (row.share ?? 0)) / most : 0}%`);
  made.append(share);
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
  problems.slice(0, MOST_ROWS).forEach((/** @type {any} */ problem, /** @type {number} */ index) => {
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
  more(body, rows);
}

/**
 * What the machine code has at each mark; open where something is wrong there.
 * @param {any} facts
 * @param {(site: number) => void} chosen
 */
export function fillAudit(facts, chosen) {
  const { audit, audit_rows: rows } = facts;
  const found = audit.filter((/** @type {any} */ row) => row.finding).length;
  byId("marks").hidden = !rows;
  byId("audit-details").open = audit.some((/** @type {any} */ row) => row.severity === "warning");
  byId("audit-count").textContent = `audit of the marks in the machine code: ${counted(rows, "mark")}, ${found ? counted(found, "finding") : "nothing wrong"}`;
  const body = byId("audit");
  for (const row of audit.slice(0, MOST_ROWS)) {
    const site = row.site === null ? null : facts.sites[row.site];
    const head = element("th", null, { scope: "row" });
    if (site) {
      const button = element("button", null, { type: "button" }, [swatch(site), siteName(site.name)]);
      button.addEventListener("click", () => chosen(row.site));
      head.append(button);
    } else head.textContent = "-"; // a mark without a site, such as the recorder's end
    const level = { warning: "level-bad", note: "level-note" }[String(row.severity)] ?? "";
    body.append(
      element("tr", null, { class: level }, [
        element("td", row.severity || "-", { class: "level" }),
        head,
        element("td", row.verb || "-"),
        element("td", null, {}, [isolated(row.file ? `${row.file}:${row.line}` : "-")]),
        element("td", row.address === null ? "-" : `0x${row.address.toString(16)}`, { class: "number" }),
        element("td", grouped(row.outstanding_loads) + (row.bulk_loads ? ` and ${row.bulk_loads}` : ""), {
          class: "number",
        }),
        element("td", row.waits_on || "-"),
        element("td", row.finding || "-"),
      ]),
    );
  }
  more(body, rows);
}

/**
 * A last row for what a table leaves out.
 * @param {HTMLElement} body
 * @param {number} rows
 */
function more(body, rows) {
  const text = `${grouped(rows - MOST_ROWS)} more in the file`;
  if (rows > MOST_ROWS) body.append(element("tr", null, {}, [element("td", text, { colspan: "8" })]));
}
