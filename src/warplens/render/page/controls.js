/**
 * Keys, buttons, fields, and the URL.
 * In: events. Out: changes of the view; every control can be reached with the keyboard alone.
 */

import { byId, element, siteName, swatch } from "./dom.js";
import { counted, rangesOf } from "./format.js";
import { measured } from "./overlay.js";
import { endedBy, fields, fillPanel } from "./panel.js";
import { listenToPointer } from "./pointer.js";
import { neighbour, nextSlowest } from "./steps.js";
import { warpsOf } from "./tables.js";

/** @typedef {import("./timeline.js").Timeline} Timeline */

const RANGES = /** @type {const} */ (["sm", "block", "warp", "payload"]);

export class Controls {
  /** @param {Timeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
    this.view = timeline.view;
    this.model = timeline.model;
    /** The first end of a measure that two chosen spans make. */
    this.anchor = -1;
    this.saving = 0;
    /** @type {string} */
    this.lastStep = "";
    /** The wait that the last jump to an arrival left. */
    this.left = -1;
  }

  /** Fills the head of the page, takes the view out of the URL, and listens. */
  start() {
    const { view, timeline, model } = this;
    this.#head();
    const held = view.read(location.hash, model.size, model.facts.sites.length);
    const { launches } = model.facts;
    if (!view.filters.launch && launches.length > 1) view.filters.launch = String(this.#firstLaunch());
    const wanted = { from: view.from, to: view.to, y: view.y };
    this.#fields();
    byId("arrows").setAttribute("aria-pressed", String(view.arrows));
    timeline.look();
    timeline.resize();
    timeline.arrange();
    if (!location.hash.includes("h=")) {
      view.rowHeight = timeline.firstHeight();
      timeline.arrange();
    }
    view.listeners.push((what) => this.#changed(what));
    if (held) view.show(wanted.from, wanted.to);
    else view.fit();
    timeline.scrollTo(wanted.y);
    this.#listen();
    this.#chosen();
    this.#siteChosen();
    timeline.drawNow();
  }

  #head() {
    const { facts } = this.model;
    byId("file").textContent = facts.file;
    const about = [facts.device, facts.created, `${counted(facts.spans, "span")}`, facts.note].filter(Boolean);
    byId("about").textContent = about.join(" · ");
    byId("about").title = about.join(" · ");
    byId("unit").replaceChildren(element("div", "ns"), element("div", "cycles"));
    for (const site of facts.sites) byId("names").append(element("option", null, { value: site.name.slice(0, 200) }));
    const roles = new Set(
      facts.groups.flatMap((/** @type {any} */ group) => Object.values(group.roles).map((role) => warpsOf(group, String(role)))),
    );
    for (const role of roles) byId("roles").append(element("option", null, { value: role }));
    const select = byId("launch");
    byId("payload-label").hidden = !this.model.payload;
    byId("arrows").hidden = byId("arrows-keys").hidden = !this.model.arrivals.any;
    byId("launch-label").hidden = facts.launches.length < 2;
    if (facts.launches.length > 1) select.append(element("option", "all", { value: "all" }));
    for (const launch of facts.launches) {
      select.append(element("option", `${launch.launch}: ${launch.kernel}`.slice(0, 80), { value: String(launch.launch) }));
    }
  }

  #firstLaunch() {
    const { lanes } = this.model;
    return lanes.launch.length ? lanes.launch[0] : this.model.facts.launches[0].launch;
  }

  /** The fields show the view's filters. */
  #fields() {
    const { filters, hidden } = this.view;
    byId("launch").value = filters.launch || "all";
    for (const key of RANGES) {
      const field = byId(`filter-${key}`);
      field.value = filters[key];
      field.setCustomValidity(rangesOf(filters[key]) === undefined ? "numbers and ranges, such as 0-3,17" : "");
    }
    byId("clear").hidden = !(RANGES.some((key) => filters[key]) || hidden.size);
    for (const box of document.querySelectorAll("input[data-hide]")) {
      if (box instanceof HTMLInputElement) box.checked = !hidden.has(Number(box.dataset.hide));
    }
  }

  /** @param {string} what */
  #changed(what) {
    const { timeline } = this;
    if (what === "filter") {
      this.#fields();
      timeline.arrange();
      this.#siteChosen();
    } else if (what === "rows") timeline.arrange();
    else if (what === "select") this.#chosen();
    else if (what === "site") this.#siteChosen();
    if (what === "arrows") byId("arrows").setAttribute("aria-pressed", String(this.view.arrows));
    if (what === "measure" || what === "select") byId("measure").setAttribute("aria-pressed", String(this.view.measuring));
    timeline.draw();
    this.#save();
  }

  #save() {
    clearTimeout(this.saving);
    this.saving = setTimeout(() => {
      try {
        history.replaceState(null, "", `#${this.view.hash()}`);
      } catch {
        // too often for this browser: the next change writes it
      }
    }, 200);
  }

  #chosen() {
    const { view, model, timeline } = this;
    fillPanel(model, view.selected, timeline.theme, (span) => this.choose(span));
    if (view.selected < 0) return;
    const span = model.span(view.selected);
    const [duration] = fields(model, span);
    byId("status").textContent = `${model.facts.sites[span.site].name}, ${duration[1]}, block ${span.block}, warp ${span.warp}`;
  }

  #siteChosen() {
    const { view, model } = this;
    const site = view.site;
    for (const row of document.querySelectorAll("tr[data-site]")) {
      row.classList.toggle("chosen", Number(row.getAttribute("data-site")) === site);
    }
    for (const id of ["previous", "next", "slowest"]) byId(id).disabled = site === null && view.selected < 0;
    byId("site-clear").hidden = site === null;
    if (site === null) {
      byId("site-name").replaceChildren("all sites");
      byId("site-count").textContent = counted(model.size, "span");
    } else {
      const facts = model.facts.sites[site];
      byId("site-name").replaceChildren(swatch(facts), siteName(facts.name));
      byId("site-count").textContent = counted(model.counts[site], "span");
    }
  }

  /** @param {number | null} site */
  chooseSite(site) {
    this.view.site = this.view.site === site ? null : site;
    this.view.changed("site");
  }

  /** @param {string} warps of a role, as the filter takes them; all again where they are chosen */
  chooseWarps(warps) {
    const { filters } = this.view;
    filters.warp = filters.warp === warps ? "" : warps;
    this.view.changed("filter");
  }

  /**
   * @param {number} site
   * @param {boolean} hide
   */
  hideSite(site, hide) {
    if (hide) this.view.hidden.add(site);
    else this.view.hidden.delete(site);
    this.view.changed("filter");
  }

  /**
   * @param {number} span
   * @param {boolean} [near]
   */
  choose(span, near = false) {
    const { view, model } = this;
    view.selected = span;
    if (view.measuring && span >= 0) {
      if (this.anchor < 0) this.anchor = span;
      const [a, b] = [this.anchor, span];
      view.measure = [Math.min(model.start[a], model.start[b]), Math.max(model.end[a], model.end[b])];
      this.#say();
    }
    view.changed("select");
    this.#siteChosen();
    if (span >= 0) this.timeline.bring(span, near);
  }

  #say() {
    const [low, high] = this.view.measure ?? [0, 0];
    byId("status").textContent = measured(Math.abs(high - low), this.timeline.originAndRate()[1]);
  }

  /** @param {"next" | "previous" | "slowest"} how */
  step(how) {
    const { view, model, timeline } = this;
    const site = view.site ?? (view.selected >= 0 ? model.site[view.selected] : null);
    if (site === null) return;
    const from = view.selected >= 0 && model.site[view.selected] === site ? view.selected : -1;
    const shown = (/** @type {number} */ span) => timeline.shown(span);
    let found;
    if (how === "slowest") found = nextSlowest(model, site, this.lastStep === "slowest" ? from : -1, shown);
    else found = neighbour(model, site, from, how === "next" ? 1 : -1, shown);
    if (found < 0) {
      byId("status").textContent = "no further span of this site";
      return;
    }
    this.choose(found);
    this.lastStep = how;
    const visible = ((model.end[found] - model.start[found]) / view.span) * timeline.width;
    if (visible < 6) timeline.bring(found, true);
  }

  /** @param {number} problem */
  goToProblem(problem) {
    const { timeline, view } = this;
    const mark = timeline.marks.find((m) => m.problem === problem);
    if (!mark) return;
    const launch = String(this.model.lanes.launch[mark.lane]);
    if (timeline.launch !== null && view.filters.launch !== launch) this.setLaunch(launch);
    const strip = timeline.layout.strip.get(mark.lane) ?? 0;
    const top = (mark.row < 0 ? null : timeline.layout.topOf(mark.row)) ?? timeline.layout.top[strip];
    const span = Math.min(view.span, (view.limits[1] - view.limits[0]) / 3);
    view.show(mark.time - span / 2, mark.time + span / 2);
    timeline.scrollTo(top - timeline.height / 2);
    byId("stage").focus();
  }

  /** @param {string} launch */
  setLaunch(launch) {
    this.view.filters.launch = launch;
    this.view.y = 0;
    this.timeline.look();
    this.view.changed("filter");
    this.view.fit();
  }

  #listen() {
    const { view, timeline } = this;
    addEventListener("resize", () => timeline.resize());
    new ResizeObserver(() => timeline.resize()).observe(byId("stage"));
    addEventListener("keydown", (event) => this.#key(event));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#themed());
    for (const how of /** @type {const} */ (["previous", "next", "slowest"])) byId(how).onclick = () => this.step(how);
    byId("site-clear").onclick = () => this.chooseSite(null);
    byId("fit").onclick = () => view.fit();
    byId("measure").onclick = () => this.toggleMeasure();
    byId("arrows").onclick = () => this.toggleArrows();
    byId("taller").onclick = () => view.grow(1);
    byId("shorter").onclick = () => view.grow(-1);
    byId("theme").onclick = () => this.switchTheme();
    byId("help-open").onclick = () => byId("help").showModal();
    byId("scroll").onscroll = (/** @type {any} */ event) => timeline.scrollTo(event.target.scrollTop);
    byId("launch").onchange = (/** @type {any} */ event) => this.setLaunch(event.target.value);
    byId("search").oninput = () => this.#search(false);
    byId("search").onkeydown = (/** @type {KeyboardEvent} */ event) => {
      if (event.key === "Enter") this.#search(true);
    };
    for (const key of RANGES) {
      byId(`filter-${key}`).oninput = (/** @type {any} */ event) => {
        view.filters[key] = event.target.value;
        view.changed("filter");
      };
    }
    byId("clear").onclick = () => {
      for (const key of RANGES) view.filters[key] = "";
      view.hidden.clear();
      view.changed("filter");
    };
    this.#themed();
    listenToPointer(this.timeline, (span, near) => this.choose(span, near), () => this.#say());
  }

  /** @param {boolean} go to the first span as well */
  #search(go) {
    const text = byId("search").value.trim().toLowerCase();
    const { sites } = this.model.facts;
    const names = sites.map((/** @type {any} */ site) => site.name.toLowerCase());
    const exact = names.indexOf(text);
    const found = exact >= 0 ? exact : names.findIndex((/** @type {string} */ name) => text && name.includes(text));
    byId("search").setCustomValidity(text && found < 0 ? "no site has such a name" : "");
    this.view.site = found < 0 ? null : found;
    this.view.changed("site");
    if (go && found >= 0) {
      this.step("next");
      byId("stage").focus();
    }
  }

  toggleMeasure() {
    const { view } = this;
    view.measuring = !view.measuring;
    this.anchor = view.measuring ? view.selected : -1;
    if (!view.measuring) view.measure = null;
    byId("status").textContent = view.measuring ? "measure: drag, or choose two spans" : "measure ended";
    view.changed("measure");
  }

  toggleArrows() {
    this.view.arrows = !this.view.arrows;
    this.view.changed("arrows");
  }

  /** From a wait to the arrival that ended it, and back. */
  jump() {
    const { view, model } = this;
    if (view.selected < 0) return;
    const told = model.arrivals.of(view.selected);
    const back = this.left >= 0 && model.arrivals.of(this.left)?.arrival === view.selected;
    if (told && told.arrival >= 0 && told.arrival !== view.selected) {
      this.left = view.selected;
      this.choose(told.arrival);
    } else if (back) this.choose(this.left);
    else byId("status").textContent = `no arrival to go to: ${endedBy(model, model.span(view.selected)) || "this span neither waits nor was ended by another warp"}`;
  }

  switchTheme() {
    const root = document.documentElement;
    root.dataset.theme = this.#isDark() ? "light" : "dark";
    this.#themed();
  }

  #isDark() {
    return getComputedStyle(document.documentElement).colorScheme === "dark";
  }

  #themed() {
    this.timeline.theme.read();
    byId("theme").textContent = this.#isDark() ? "light" : "dark";
    this.#chosen();
    this.timeline.draw();
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const target = /** @type {HTMLElement} */ (event.target);
    const help = byId("help");
    if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    if (target.matches?.("input:not([type=checkbox]), select, textarea")) {
      if (event.key === "Escape") byId("stage").focus();
      return;
    }
    const onStage = target.id === "stage" || target === document.body;
    if (this.#press(event.key, onStage)) event.preventDefault();
  }

  /**
   * @param {string} key
   * @param {boolean} onStage whether keys that elements have a use for are the timeline's
   * @returns {boolean} whether it meant something
   */
  #press(key, onStage) {
    const { view, timeline } = this;
    const middle = (view.from + view.to) / 2;
    /** @type {Record<string, () => void>} */
    const always = {
      w: () => view.zoom(0.7, middle),
      s: () => view.zoom(1 / 0.7, middle),
      a: () => view.pan(-0.15),
      d: () => view.pan(0.15),
      f: () => view.fit(),
      m: () => this.toggleMeasure(),
      n: () => this.step("next"),
      p: () => this.step("previous"),
      l: () => this.step("slowest"),
      r: () => this.toggleArrows(),
      j: () => this.jump(),
      t: () => this.switchTheme(),
      "/": () => byId("search").select(),
      "?": () => byId("help").showModal(),
      "+": () => view.grow(1),
      "=": () => view.grow(1),
      "-": () => view.grow(-1),
      "[": () => this.#nextLaunch(-1),
      "]": () => this.#nextLaunch(1),
      Escape: () => this.#escape(),
    };
    /** @type {Record<string, () => void>} */
    const stage = {
      ArrowLeft: () => this.#walk(-1, 0),
      ArrowRight: () => this.#walk(1, 0),
      ArrowUp: () => this.#walk(0, -1),
      ArrowDown: () => this.#walk(0, 1),
      PageUp: () => timeline.scrollTo(view.y - timeline.height * 0.8),
      PageDown: () => timeline.scrollTo(view.y + timeline.height * 0.8),
      Enter: () => view.selected >= 0 && timeline.bring(view.selected, true),
    };
    const action = always[key.length === 1 ? key.toLowerCase() : key] ?? (onStage ? stage[key] : undefined);
    action?.();
    return action !== undefined;
  }

  /**
   * From the chosen span to the next in its row, or to what is open at its middle in the next row.
   * @param {number} along
   * @param {number} down
   */
  #walk(along, down) {
    const { view, model, timeline } = this;
    const { layout } = timeline;
    if (view.selected < 0) {
      const y = Math.min(view.y + 60, layout.height - 2);
      const row = layout.rowAt(y) >= 0 ? layout.rowAt(y) : (layout.row[0] ?? -1);
      if (row < 0 || model.rowSpan[row] === model.rowSpan[row + 1]) return;
      const found = model.spanAt(row, (view.from + view.to) / 2, Infinity);
      this.choose(found >= 0 ? found : model.rowSpan[row]);
      return;
    }
    const row = model.rowOf(view.selected);
    if (along) {
      const next = view.selected + along;
      if (next >= model.rowSpan[row] && next < model.rowSpan[row + 1]) this.choose(next);
      return;
    }
    const middle = (model.start[view.selected] + model.end[view.selected]) / 2;
    for (let place = layout.row.indexOf(row) + down; place >= 0 && place < layout.row.length; place += down) {
      const found = model.spanAt(layout.row[place], middle, Infinity);
      if (found < 0 || !timeline.shown(found)) continue;
      this.choose(found);
      return;
    }
  }

  /** @param {number} step */
  #nextLaunch(step) {
    const { launches } = this.model.facts;
    const now = launches.findIndex((/** @type {any} */ l) => String(l.launch) === this.view.filters.launch);
    const next = launches[now + step];
    if (next && launches.length > 1) this.setLaunch(String(next.launch));
  }

  #escape() {
    const { view } = this;
    if (view.measuring) this.toggleMeasure();
    else if (view.selected >= 0) this.choose(-1);
    else if (view.site !== null) this.chooseSite(null);
  }
}
