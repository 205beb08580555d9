/**
 * What is written over the pixels: ruler, names of blocks and sites, torn ends, problems, selection, measure.
 * In: the state of the page. Out: strokes and text on a transparent canvas. Names reach it as text only.
 */

import { drawArrows } from "./arrows.js";
import { grouped, shortNs, tickStep, tickText } from "./format.js";
import { firstAfter, firstNotBefore } from "./model.js";

/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("./rows.js").Layout} Layout */
/** @typedef {import("./view.js").View} View */
/** @typedef {import("./theme.js").Theme} Theme */
/** @typedef {{x: number, y: number, strip: number, row: number, span: number, head: number} | null} Hover */
/** @typedef {{row: number, lane: number, time: number, problem: number, severe: boolean}} Mark */
/**
 * @typedef {object} Scene
 * @property {Model} model
 * @property {View} view
 * @property {Layout} layout
 * @property {Theme} theme
 * @property {Hover} hover
 * @property {Mark[]} marks
 * @property {Uint8Array | null} passing spans that the filters let through; null for all
 * @property {number} origin ns of the first instant of the launch that is looked at
 * @property {number} rate cycles a ns; 0 where it is not known
 * @property {number} width of the timeline in CSS pixels
 * @property {number} height
 */

const MAX_LABELS = 1500;
const INSTANT = 1;
const UNENDED = 2;
const AFTER_GAP = 4;

/**
 * @param {CanvasRenderingContext2D} context in CSS pixels
 * @param {Scene} scene
 * @returns {import("./arrows.js").Head[]} where arrows end
 */
export function drawOverlay(context, scene) {
  const { layout, view, height } = scene;
  context.clearRect(0, 0, scene.width, height);
  context.textBaseline = "middle";
  grid(context, scene);
  for (let strip = Math.max(layout.stripAt(view.y), 0); strip < layout.lane.length; strip++) {
    if (layout.top[strip] - view.y > height) break;
    blockNames(context, scene, strip);
    if (layout.rowHeight >= 4) details(context, scene, strip);
  }
  heads(context, scene);
  problems(context, scene);
  selection(context, scene);
  const arrows = drawArrows(context, scene);
  measure(context, scene);
  return arrows;
}

/**
 * The ruler: ns above, cycles below.
 * @param {CanvasRenderingContext2D} context
 * @param {Scene} scene
 */
export function drawRuler(context, scene) {
  const { width, theme, rate } = scene;
  context.clearRect(0, 0, width, 40);
  context.textBaseline = "middle";
  context.font = theme.font(11);
  ruler(context, scene, 1, 10, true);
  if (rate) ruler(context, scene, rate, 29, false);
  else {
    context.fillStyle = theme.dim;
    context.fillText("cycles: the clock rate is not known", 4, 29);
  }
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Scene} scene
 * @param {number} perNs units a ns
 * @param {number} y
 * @param {boolean} time
 */
function ruler(context, { view, width, theme, origin }, perNs, y, time) {
  const step = tickStep(((view.to - view.from) / width) * perNs * 110);
  const first = Math.ceil(((view.from - origin) * perNs) / step);
  const last = Math.floor(((view.to - origin) * perNs) / step);
  for (let k = first; k <= last; k++) {
    const x = ((k * step) / perNs + origin - view.from) * (width / (view.to - view.from));
    context.fillStyle = theme.dim;
    context.fillRect(Math.round(x), time ? 16 : 36, 1, 4);
    context.fillStyle = time ? theme.ink : theme.dim;
    const text = time ? tickText(k * step, step, true) : `${tickText(k * step, step, false)}${k === first ? " cycles" : ""}`;
    if (x + 3 + context.measureText(text).width <= width) context.fillText(text, x + 3, y);
  }
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Scene} scene
 */
function grid(context, { view, width, height, theme, origin }) {
  const step = tickStep(((view.to - view.from) / width) * 110);
  context.fillStyle = theme.grid;
  for (let k = Math.ceil((view.from - origin) / step); k * step + origin <= view.to; k++) {
    context.fillRect(Math.round((k * step + origin - view.from) * (width / (view.to - view.from))), 0, 1, height);
  }
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Scene} scene
 * @param {number} strip
 */
function blockNames(context, { model, view, layout, theme, width }, strip) {
  if (layout.bar < 11) return;
  const perNs = width / (view.to - view.from);
  const y = layout.top[strip] - view.y + (layout.bar - 1) / 2 + 0.5;
  context.font = theme.font(layout.bar - 3);
  context.fillStyle = theme.barInk;
  let labels = 0;
  for (const block of model.blocksOfLane(layout.lane[strip])) {
    if (layout.blocks && !layout.blocks.has(block)) continue;
    const x0 = (model.blocks.start[block] - view.from) * perNs;
    const x1 = x0 + model.blocks.time[block] * perNs;
    if (x1 < 0 || x0 > width || Math.min(x1, width) - Math.max(x0, 0) < 46) continue;
    if (++labels > 60) break;
    const text = `block ${model.blocks.block[block]}`;
    context.fillText(text, Math.max(x0, 0) + 4, y);
  }
}

/**
 * Names in wide spans, ticks of instants, torn ends, gaps.
 * @param {CanvasRenderingContext2D} context
 * @param {Scene} scene
 * @param {number} strip
 */
function details(context, { model, view, layout, theme, width, height, passing }, strip) {
  const perNs = width / (view.to - view.from);
  const { start, end, site, rowSpan, flags } = model;
  const { sites } = model.facts;
  const named = layout.rowHeight >= 11;
  if (!named && !flags) return;
  context.font = theme.font(Math.min(layout.rowHeight - 3, 11));
  let y = layout.top[strip] + layout.bar - view.y;
  let labels = 0;
  for (let place = layout.first[strip]; place < layout.first[strip + 1]; place++, y += layout.rowHeight) {
    if (y < -layout.rowHeight) continue;
    if (y > height) break;
    const row = layout.row[place];
    const first = Math.max(rowSpan[row], firstAfter(start, rowSpan[row], rowSpan[row + 1], view.from) - 1);
    const last = firstNotBefore(start, first, rowSpan[row + 1], view.to);
    if (last - first > width) continue;
    for (let i = first; i < last && labels < MAX_LABELS; i++) {
      if ((passing && !passing[i]) || !layout.ofBlocks(i)) continue;
      const x0 = Math.max((start[i] - view.from) * perNs, 0);
      const x1 = Math.min((end[i] - view.from) * perNs, width);
      if (flags && flags[i] & (INSTANT | UNENDED | AFTER_GAP)) flagged(context, theme, flags[i], x0, x1, y, layout.rowHeight);
      if (!named || x1 - x0 < 30 || view.hidden.has(site[i])) continue;
      const { name, ink, waits } = sites[site[i]];
      if (x1 - x0 < 8 + Math.min(name.length, 40) * 3) continue;
      labels++;
      const shown = fitting(context, name, x1 - x0 - 6);
      if (!shown) continue;
      if (waits) {
        context.fillStyle = theme.siteColor(site[i]);
        context.fillRect(x0 + 2, y + 1, context.measureText(shown).width + 3, layout.rowHeight - 3);
      }
      context.fillStyle = theme.inkOf(site[i], ink);
      context.fillText(shown, x0 + 3, y + layout.rowHeight / 2);
    }
  }
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {string} name
 * @param {number} room
 */
function fitting(context, name, room) {
  let text = name.length > 80 ? name.slice(0, 80) : name;
  if (context.measureText(text).width <= room) return text;
  const share = room / context.measureText(text).width;
  text = [...text].slice(0, Math.floor(text.length * share) - 1).join("");
  return text.length > 2 ? `${text}…` : "";
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Theme} theme
 * @param {number} flag
 * @param {number} x0
 * @param {number} x1
 * @param {number} y
 * @param {number} h
 */
function flagged(context, theme, flag, x0, x1, y, h) {
  context.fillStyle = flag & INSTANT ? theme.ink : theme.alarm;
  context.beginPath();
  if (flag & INSTANT) {
    const half = Math.min(4, h / 2.5);
    context.moveTo(x0, y + half * 1.6);
    context.lineTo(x0 - half, y);
    context.lineTo(x0 + half, y);
  } else if (flag & UNENDED) {
    const teeth = 4;
    context.moveTo(x1 + 2, y);
    for (let k = 0; k <= teeth; k++) context.lineTo(x1 - (k % 2 ? 4 : 0), y + ((h - 1) * k) / teeth);
    context.lineTo(x1 + 2, y + h - 1);
  }
  context.fill();
  if (flag & AFTER_GAP) {
    context.fillStyle = theme.alarm;
    context.fillRect(x0 - 1, y, 2, h);
  }
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Scene} scene
 */
function heads(context, { model, view, layout, theme, height }) {
  context.font = theme.font(12, "600");
  for (const [top, launch] of layout.heads) {
    const y = top - view.y;
    if (y < -20 || y > height) continue;
    const row = model.facts.launches.find((/** @type {any} */ l) => l.launch === launch);
    context.fillStyle = theme.ink;
    context.fillText(`launch ${launch}  ${String(row?.kernel ?? "").slice(0, 120)}`, 4, y + 11);
  }
}

/**
 * Problems where they happened: a triangle each.
 * @param {CanvasRenderingContext2D} context
 * @param {Scene} scene
 */
function problems(context, { view, layout, theme, width, height, marks }) {
  for (const mark of marks) {
    const x = ((mark.time - view.from) / (view.to - view.from)) * width;
    if (x < -6 || x > width + 6) continue;
    const strip = layout.strip.get(mark.lane);
    if (strip === undefined) continue;
    const y = (mark.row < 0 ? null : layout.topOf(mark.row)) ?? layout.top[strip];
    const at = y - view.y;
    if (at < -10 || at > height + 10) continue;
    context.fillStyle = mark.severe ? theme.alarm : theme.note;
    context.strokeStyle = theme.page;
    context.beginPath();
    context.moveTo(x, at - 1);
    context.lineTo(x - 6, at + 10);
    context.lineTo(x + 6, at + 10);
    context.closePath();
    context.fill();
    context.stroke();
  }
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Scene} scene
 */
function selection(context, { model, view, layout, theme, width, hover }) {
  const perNs = width / (view.to - view.from);
  for (const [span, color, thick] of /** @type {[number, string, number][]} */ ([
    [hover?.span ?? -1, theme.dim, 1],
    [view.selected, theme.select, 2],
  ])) {
    if (span < 0) continue;
    const top = layout.topOf(model.rowOf(span));
    if (top === null) continue;
    const x0 = Math.max((model.start[span] - view.from) * perNs, -4);
    const x1 = Math.min((model.end[span] - view.from) * perNs, width + 4);
    context.strokeStyle = color;
    context.lineWidth = thick;
    const tall = Math.max(layout.rowHeight, 3);
    context.strokeRect(x0 - 1, top - view.y - 1, Math.max(x1 - x0, 1) + 2, tall + 1);
    if (span === view.selected && x1 - x0 < 6) {
      context.fillStyle = color;
      context.beginPath();
      context.moveTo((x0 + x1) / 2, top - view.y - 3);
      context.lineTo((x0 + x1) / 2 - 6, top - view.y - 12);
      context.lineTo((x0 + x1) / 2 + 6, top - view.y - 12);
      context.fill();
    }
  }
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Scene} scene
 */
function measure(context, { view, theme, width, height, rate }) {
  if (!view.measure) return;
  const perNs = width / (view.to - view.from);
  const [low, high] = [Math.min(...view.measure), Math.max(...view.measure)];
  const [x0, x1] = [(low - view.from) * perNs, (high - view.from) * perNs];
  context.fillStyle = theme.veil;
  context.fillRect(x0, 0, x1 - x0, height);
  context.fillStyle = theme.select;
  context.fillRect(x0 - 0.5, 0, 1, height);
  context.fillRect(x1 - 0.5, 0, 1, height);
  const text = measured(high - low, rate);
  context.font = theme.font(12, "600");
  const wide = context.measureText(text).width + 12;
  const at = Math.min(Math.max((x0 + x1) / 2 - wide / 2, 2), Math.max(width - wide - 2, 2));
  context.fillStyle = theme.select;
  context.fillRect(at, 6, wide, 20);
  context.fillStyle = theme.selectInk;
  context.fillText(text, at + 6, 16.5);
}

/**
 * A distance in both units: cycles at the rate of the launch.
 * @param {number} ns
 * @param {number} rate
 */
export function measured(ns, rate) {
  const cycles = rate ? `${grouped(Math.round(ns * rate))} cycles` : "cycles not known";
  return `${cycles} · ${ns < 1e6 ? `${grouped(Math.round(ns))} ns` : shortNs(ns)}`;
}
