/**
 * The page. In: its own elements with the packed trace. Out: tables, timeline and panel; `data-ready` on the root.
 */

import { bytesOf, inflate } from "./codec.js";
import { Controls } from "./controls.js";
import { byId } from "./dom.js";
import { Model } from "./model.js";
import { fillAudit, fillProblems, fillPhases, fillTrust } from "./tables.js";
import { Theme } from "./theme.js";
import { Timeline } from "./timeline.js";
import { View } from "./view.js";

/** The text of an element, which is then let go.
 * @param {Element} holder
 */
function taken(holder) {
  const text = holder.textContent ?? "";
  holder.remove();
  return text;
}

async function open() {
  const holders = [byId("facts-data"), ...document.querySelectorAll("script.stream")];
  const [text, ...streams] = await Promise.all(holders.map((holder) => inflate(bytesOf(taken(holder)))));
  const facts = JSON.parse(new TextDecoder().decode(text));
  const model = new Model(facts, streams);
  const timeline = new Timeline(model, new View(), new Theme(facts.sites));
  const controls = new Controls(timeline);
  fillTrust(facts);
  fillPhases(facts, {
    choose: (site) => controls.chooseSite(site),
    hide: (site, hide) => controls.hideSite(site, hide),
    role: (warps) => controls.chooseWarps(warps),
  });
  fillProblems(facts, (problem) => controls.goToProblem(problem));
  fillAudit(facts, (site) => controls.chooseSite(site));
  controls.start();
  return timeline;
}

open().then(
  (timeline) => {
    /** @type {any} */ (window).warplens = timeline; // for tests and for the console
    document.documentElement.dataset.ready = String(Math.round(performance.now()));
  },
  (error) => {
    byId("status").className = "failed";
    byId("status").textContent = `This page could not be opened: ${error}. A browser of 2023 or later is needed.`;
    throw error;
  },
);
