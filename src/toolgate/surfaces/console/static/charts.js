// Charts as inline SVG: drawn from numbers, coloured by the style sheet.

import { s } from "./dom.js";
import { t } from "./lang.js";
import { clock } from "./ui.js";

export function bars(minutes, label) {
  const isNarrow = innerWidth < 640; // drawn smaller there, so that its words keep their size
  const [width, height, foot] = [isNarrow ? 330 : 1000, 128, 20];
  const [gap, round] = isNarrow ? [0.5, 1] : [1.5, 2];
  const most = Math.max(4, ...minutes.map((one) => one.ok + one.failed));
  const step = width / minutes.length;
  const scale = (n) => (n / most) * (height - foot - 8);
  const shapes = minutes.flatMap((one, n) => {
    const good = scale(one.ok), bad = scale(one.failed), x = n * step + gap, wide = step - 2 * gap;
    const title = s("title", null, `${clock(one.at, false)} · ${t("{n} runs", { n: one.ok + one.failed })}${one.failed ? ` · ${t("{n} failed", { n: one.failed })}` : ""}`);
    return s("g", null, title,
      s("rect", { x: n * step, y: 0, width: step, height: height - foot, class: "hover" }),
      good ? s("rect", { x, y: height - foot - good, width: wide, height: good, rx: round, class: "bar" }) : null,
      bad ? s("rect", { x, y: height - foot - good - bad, width: wide, height: bad, rx: round, class: "bar bad" }) : null);
  });
  const marks = (isNarrow ? [0, 30, 59] : [0, 15, 30, 45, 59]).map((n) => s("text", { x: n === 59 ? width : n * step, y: height - 3, "text-anchor": n === 0 ? "start" : n === 59 ? "end" : "middle" }, clock(minutes[n].at, false)));
  return s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, class: "chart" },
    s("line", { x1: 0, x2: width, y1: height - foot, y2: height - foot, class: "axis" }),
    s("text", { x: 0, y: 10 }, String(most)), shapes, marks);
}

export function split(parts, label) {
  const total = parts.reduce((sum, part) => sum + part.value, 0) || 1;
  let x = 0;
  const shapes = parts.filter((part) => part.value).map((part) => {
    const width = (part.value / total) * 720;
    const shape = s("rect", { x, y: 0, width: Math.max(2, width - 2), height: 12, rx: 3, class: `bar ${part.tone}` }, s("title", null, `${part.name}: ${part.value}`));
    x += width;
    return shape;
  });
  return s("svg", { viewBox: "0 0 720 12", role: "img", "aria-label": label, class: "chart split", preserveAspectRatio: "none" },
    s("rect", { x: 0, y: 0, width: 720, height: 12, rx: 3, class: "track" }), shapes);
}
