"use strict";
const rows = JSON.parse(document.getElementById("data").textContent);
const slider = document.getElementById("slider"), play = document.getElementById("play");
const count = document.getElementById("count"), detail = document.getElementById("detail");
const last = Math.max(1, ...rows.flatMap(row => row.when));
const SECONDS = Math.min(12, Math.max(3, last * 0.12));
let pass = 0, timer = null, picked = null;

const tokens = rows.flatMap(row => {
  const figure = document.createElement("figure"), caption = document.createElement("figcaption");
  const text = document.createElement("div");
  caption.textContent = row.title;
  text.className = "text";
  const spans = row.glyphs.map((glyph, i) => {
    const span = document.createElement("span"), when = row.when[i];
    span.textContent = when ? glyph.replace(/\n/g, "↵\n") : glyph;  // also while masked, invisibly, so that the text never moves
    span.style.setProperty("--hue", (255 - 240 * (when - 1) / Math.max(1, last - 1)).toFixed(1));
    const sure = (100 * row.probability[i]).toPrecision(row.probability[i] < 0.01 ? 1 : 2);
    const description = when === 0 ? "given" : `pass ${when} of ${last}, ${Number(sure)} % sure`;
    return { span, when, glyph, description: `token ${row.tokens[i]} · ${description}` };
  });
  text.append(...spans.map(token => token.span));
  if (row.title) figure.append(caption);
  figure.append(text);
  document.getElementById("texts").append(figure);
  return spans;
});

function show(next) {
  pass = Math.max(0, Math.min(last, next));
  slider.value = pass;
  count.textContent = `pass ${pass} / ${last}`;
  for (const token of tokens) {
    const known = token.when <= pass;
    const state = token.when === 0 ? "given" : !known ? "masked" : token.when === pass && pass < last ? "fresh" : "seen";
    token.span.className = `t ${state}${token === picked ? " picked" : ""}`;
    token.span.title = known ? `${quoted(token.glyph)} · ${token.description}` : "still masked";
  }
  describe();
}

function quoted(glyph) {
  return `“${glyph.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/ /g, "␣")}”`;
}

function describe() {
  if (!picked) return;
  detail.replaceChildren();
  if (picked.when > pass) { detail.textContent = "still masked"; return; }
  const name = document.createElement("b");
  name.textContent = quoted(picked.glyph);
  detail.append(name, ` · ${picked.description}`);
}

function running(on) {
  clearInterval(timer);
  timer = on ? setInterval(tick, 1000 * SECONDS / last) : null;
  play.textContent = on ? "❚❚" : "▶";
  play.setAttribute("aria-label", on ? "pause" : "play");
}

function tick() {
  if (pass < last) show(pass + 1);
  if (pass >= last) running(false);
}

function toggle() {
  if (!timer && pass >= last) show(0);
  running(!timer);
}

play.addEventListener("click", toggle);
slider.max = last;
slider.addEventListener("input", () => { running(false); show(Number(slider.value)); });
document.addEventListener("keydown", event => {
  if (event.target === slider && event.key.startsWith("Arrow")) return;
  if (event.key === " " && event.target !== play) { event.preventDefault(); toggle(); }
  if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
    running(false);
    show(pass + (event.key === "ArrowRight" ? 1 : -1));
  }
});
for (const token of tokens) {
  const pick = () => { picked = token; show(pass); };
  token.span.addEventListener("pointerenter", pick);
  token.span.addEventListener("click", pick);
}
const asked = Number(new URLSearchParams(location.search).get("pass") ?? NaN);
if (!Number.isNaN(asked)) show(asked);
else if (matchMedia("(prefers-reduced-motion: reduce)").matches) show(last);
else { show(0); setTimeout(() => { if (pass === 0 && !timer) running(true); }, 600); }
