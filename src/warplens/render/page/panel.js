/**
 * The panel beside the timeline: one span with all its fields, its place among its like, its source line, its warp.
 * In: a Model and a span. Out: elements; a row of the warp's table chooses another span.
 */

import { byId, element, isolated, siteName, swatch } from "./dom.js";
import { counted, grouped, shortNs } from "./format.js";
import { spreadOf } from "./steps.js";

/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("./model.js").Span} Span */

const AROUND = 3;
const WARP_ROWS = 40;
const DETACHED = 128;
const WORDS = /** @type {Record<string, string>} */ ({
  INSTANT: "an instant",
  UNENDED: "no end was seen: cut at the warp's last event",
  AFTER_GAP: "records were lost or left out just before it",
  OVERLAPPING: "crosses another range of its warp",
  CROSS_WARP: "begun by one warp, ended by another",
  WRAPPED: "times are right modulo the range of a record only",
  DETACHED: "a mark of single lanes",
});
const WITHHELD = /** @type {Record<string, string>} */ ({
  NO_RESOURCE: "the site names nothing that it waits for",
  NO_ARRIVAL: "no arrival there is marked in this block",
  COUNTS_DIFFER: "the warps of this block have different numbers of rounds there",
  RECORDS_MISSING: "records of this block are missing or in doubt: rounds cannot be counted",
  WARPS_MISSING: "not all warps of this block left records: rounds cannot be counted",
  NO_BARRIER: "no arrival there is marked, and it is no barrier: some wait ended before all its warps had come",
  OUTSIDE: "the arrival is not in the part of the trace that this page shows",
  OPEN: "its parity let it pass: nothing had to arrive",
  REMOTE: "other blocks of the cluster arrive there too, and only this block's warps are counted",
  COUNT_UNKNOWN: "how many arrivals end a phase of this barrier, or how many the marks tell of, is not known",
  SEVERAL_NAMES: "other marks may mean this barrier by another name: a stage of a ring, or the ring",
  COUNT_DISAGREES: "the marks tell of more or fewer arrivals than end a phase of this barrier",
  TOO_LATE: "the last arrival of its round came after it was over",
});

/**
 * @param {Model} model
 * @param {number} index -1 for none
 * @param {import("./theme.js").Theme} theme
 * @param {(span: number) => void} choose
 */
export function fillPanel(model, index, theme, choose) {
  const panel = byId("span");
  byId("none").hidden = index >= 0;
  panel.hidden = index < 0;
  if (index < 0) return;
  const span = model.span(index);
  const site = model.facts.sites[span.site];
  byId("span-name").replaceChildren(swatch(site), isolated(site.name, site.name));
  const list = byId("span-fields");
  list.replaceChildren();
  for (const [name, value] of fields(model, span)) {
    list.append(element("dt", name), element("dd", null, {}, [isolated(value)]));
  }
  const told = model.arrivals.of(index);
  const go = byId("arrival");
  go.hidden = !told || told.arrival < 0 || told.arrival === index;
  go.onclick = () => told && choose(told.arrival);
  place(model, span, theme);
  source(model, site);
  warp(model, span, choose);
}

/**
 * @param {Model} model
 * @param {Span} span
 * @returns {[string, string][]}
 */
export function fields(model, span) {
  const { facts } = model;
  const site = facts.sites[span.site];
  const launch = facts.launches.find((/** @type {any} */ l) => l.launch === span.launch);
  const group = facts.groups.find((/** @type {any} */ g) => g.launches.includes(span.launch));
  const role = group?.roles[span.warp];
  const within = launch?.uncertainty_ns;
  const sm = span.sm < 0 ? "not known" : span.smEnd >= 0 && span.smEnd !== span.sm ? `${span.sm}, ended on ${span.smEnd}` : `${span.sm}`;
  const flags = Object.entries(facts.flags).filter(([, bit]) => span.flags & /** @type {number} */ (bit));
  /** @type {[string, string][]} */
  const out = [
    ["duration", `${grouped(span.durationCycles)} cycles · ${grouped(span.durationNs)} ns`],
    ["corrected", corrected(span)],
    ["start", `${grouped(span.startNs)} ns`],
    ["start (clock64)", grouped(span.startCycles)],
    ["uncertainty", within === null || within === undefined ? "not known" : `${grouped(within)} ns against other SMs`],
    ["launch", String(span.launch)],
    ["block", `${span.block}${launch ? ` (${coordinates(span.block, launch)})` : ""}, wave ${span.wave + 1}`],
    ["warp", role ? `${span.warp} (role ${role})` : String(span.warp)],
    ["SM", sm],
    ["sequence", String(span.sequence)],
    ["kind", site.kind],
  ];
  if (span.cluster >= 0) out.push(["cluster", String(span.cluster)]);
  if (site.resource) out.push([site.waits ? "waits for" : "resource", site.resource]);
  const ended = endedBy(model, span);
  if (ended) out.push(["ended by", ended]);
  if (span.depth) out.push(["depth", String(span.depth)]);
  if (span.payload !== null) out.push(["payload", `${span.payload} (0x${span.payload.toString(16)})`]);
  if (span.id !== null) out.push(span.flags & DETACHED ? ["lanes", lanes(span.id)] : ["id", String(span.id)]);
  out.push(["flags", flags.length ? flags.map(([name]) => WORDS[name] ?? name).join("; ") : "none"]);
  out.push(["site", `${span.site} of ${site.site_set}`]);
  return out;
}

/** @param {Span} span */
function corrected({ correctedNs, correctedWithinNs }) {
  return correctedNs === null ? "not corrected" : `${grouped(correctedNs)} ± ${grouped(correctedWithinNs)} ns`;
}

/**
 * What ended a wait, or a range that another warp ended, and how that is known; "" for other spans.
 * @param {Model} model
 * @param {Span} span
 */
export function endedBy(model, span) {
  const told = model.arrivals.of(span.index);
  if (!told) return "";
  if (told.ender) {
    const { block, warp } = told.ender;
    return `recorded (id ${span.id}): warp ${warp}${block === span.block ? "" : ` of block ${block}`}${told.row < 0 ? ", which this page does not show" : ""}`;
  }
  if (told.arrival < 0) return `not known: ${WITHHELD[told.basis] ?? told.basis}`;
  const hardware = told.basis === "HARDWARE";
  const inferred = hardware ? "by hardware, at some time behind its issue" : "inferred from the order of rounds";
  const how = told.basis === "RECORDED" ? `recorded (id ${span.id})` : inferred;
  const rank = told.of > 1 ? `, the last of ${told.of} ${hardware ? "issues" : "to arrive"}` : "";
  if (told.arrival === span.index) return `${how}: its own warp${rank}`;
  const arrival = model.span(told.arrival);
  const { name } = model.facts.sites[arrival.site];
  const before = span.startCycles + BigInt(span.durationCycles) - arrival.startCycles;
  return `${how}: warp ${arrival.warp}, ${name.slice(0, 80)}${rank}, ${grouped(before)} cycles before the end`;
}

/**
 * @param {number} block
 * @param {any} launch
 */
function coordinates(block, launch) {
  const { grid_x: x, grid_y: y } = launch;
  return `${block % x},${Math.floor(block / x) % y},${Math.floor(block / (x * y))}`;
}

/**
 * The distribution of the span's site, and where the span stands in it.
 * @param {Model} model
 * @param {Span} span
 * @param {import("./theme.js").Theme} theme
 */
function place(model, span, theme) {
  const spread = spreadOf(model, span.site, span.durationCycles);
  const canvas = /** @type {HTMLCanvasElement} */ (byId("spread"));
  const scale = devicePixelRatio;
  const [width, height] = [canvas.clientWidth || 300, 72];
  [canvas.width, canvas.height] = [width * scale, height * scale];
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.scale(scale, scale);
  const most = Math.max(...spread.bars, 1);
  const step = width / spread.bars.length;
  const { edges } = spread;
  const own = spread.bars.findIndex((_, k) => span.durationCycles < edges[k + 1]);
  spread.bars.forEach((count, k) => {
    const tall = count ? Math.max((count / most) * (height - 18), 1) : 0;
    context.fillStyle = k === own ? theme.select : theme.bar2;
    context.fillRect(k * step, height - 14 - tall, step - 1, tall);
  });
  context.fillStyle = theme.dim;
  context.font = theme.font(10);
  context.textBaseline = "bottom";
  context.fillText(`${grouped(Math.round(edges[0]))}`, 0, height);
  const right = `${grouped(Math.round(spread.max))} cycles`;
  context.fillText(right, width - context.measureText(right).width, height);
  if (own >= 0) {
    context.fillStyle = theme.select;
    context.fillRect(own * step + step / 2 - 1, 0, 2, height - 14);
  }
  const longest = spread.below === spread.count - 1 && spread.count > 1;
  const share = longest ? "the longest of " : spread.count ? `longer than ${((100 * spread.below) / spread.count).toFixed(1)} % of ` : "one of ";
  const left = spread.left ? ` (${counted(spread.left, "cut or instant span")} left out)` : "";
  byId("place").textContent = `${share}${counted(spread.count, "span")} of this site on the page, median ${grouped(spread.p50)} cycles${left}`;
}

/**
 * Where the site's marks stand, and the source around the first; where that is not known, what the site's table says.
 * @param {Model} model
 * @param {any} site
 */
function source(model, site) {
  const marks = /** @type {[string, number][]} */ (site.marks.length ? site.marks : [[site.file, site.line]]);
  const [file, first] = marks[0];
  const place = byId("source");
  const text = byId("source-text");
  text.replaceChildren();
  place.textContent = file ? `${file}${first ? `:${first}` : ""}` : "source not known";
  const others = marks.slice(1).map(([other, line]) => (other === file ? String(line) : `${other}:${line}`));
  if (site.more_marks) others.push(`${site.more_marks} more`);
  if (others.length) place.textContent += `, also ${others.join(", ")}`;
  const lines = model.facts.sources[file];
  text.hidden = !lines || !first;
  if (text.hidden) {
    if (file) place.textContent += lines ? " (no line)" : " (not in the file)";
    return;
  }
  const here = new Set(marks.filter(([other]) => other === file).map(([, line]) => line));
  for (let line = Math.max(first - AROUND, 1); line <= Math.min(first + AROUND, lines.length); line++) {
    const tag = here.has(line) ? "mark" : "span";
    text.append(element(tag, `${String(line).padStart(4)}  ${lines[line - 1]}\n`));
  }
}

/**
 * The spans of the same warp and block around this one.
 * @param {Model} model
 * @param {Span} span
 * @param {(span: number) => void} choose
 */
function warp(model, span, choose) {
  const around = model.spansOfWarp(span, WARP_ROWS / 2);
  const here = around.indexOf(span.index);
  const first = Math.max(here - WARP_ROWS / 2, 0);
  const shown = around.slice(first, first + WARP_ROWS);
  byId("warp-caption").textContent = `block ${span.block}, warp ${span.warp}: spans around this one`;
  const body = byId("warp");
  body.replaceChildren();
  for (const i of shown) {
    const site = model.facts.sites[model.site[i]];
    const button = element("button", null, { type: "button" }, [swatch(site), siteName(site.name)]);
    const row = element("tr", null, i === span.index ? { "aria-current": "true" } : {}, [
      element("td", null, {}, [button]),
      element("td", grouped(model.cycles[i]), { class: "number" }),
      element("td", shortNs(model.end[i] - model.start[i]), { class: "number" }),
    ]);
    row.addEventListener("click", () => choose(i));
    body.append(row);
  }
}

/**
 * How many lanes a mask has, and the mask.
 * @param {number} mask
 */
function lanes(mask) {
  let count = 0;
  for (let lane = 0; lane < 32; lane++) count += (mask >>> lane) & 1;
  return `${count} of 32 (0x${mask.toString(16).padStart(8, "0")})`;
}
