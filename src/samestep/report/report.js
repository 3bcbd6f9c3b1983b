"use strict";
// Draws the curves of a report with uPlot. Everything that is shown as a text is a text: nothing is parsed as HTML.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const settings = { smoothing: 0, log: false, x: "step", marks: true };
  const hidden = new Set(); // names of runs that are switched off
  const charts = []; // {plot, place, about} of those that are drawn
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer;
  const floats = (text) => new Float32Array(bytes(text));
  const whole = (text) => new Uint32Array(bytes(text));
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const format = (value) => (value == null ? "" : Number(value.toPrecision(5)).toString());

  // A line keeps its numbers as they were written; NaN and infinity are gaps.
  const decoded = new Map();
  function numbers(line) {
    if (!decoded.has(line)) decoded.set(line, { x: whole(line.x), y: floats(line.y) });
    return decoded.get(line);
  }

  function seconds(line, steps) {
    const clock = data.clocks[line.run]?.[line.stage];
    if (!clock) return null;
    const known = numbers(clock);
    let at = 0;
    return Array.from(steps, (step) => {
      while (at < known.x.length - 1 && known.x[at] < step) at++;
      const after = known.x[at], before = at ? known.x[at - 1] : 0;
      const from = at ? known.y[at - 1] : 0;
      return after > before ? from + ((known.y[at] - from) * (step - before)) / (after - before) : known.y[at];
    });
  }

  function smoothed(values, weight) {
    let sum = 0, total = 0;
    return values.map((value) => {
      if (value == null) return null;
      sum = sum * weight + value * (1 - weight);
      total = total * weight + (1 - weight);
      return sum / total;
    });
  }

  // One table of uPlot for all lines of a chart: its first row is x.
  function table(about) {
    const tables = [], series = [];
    for (const line of about.lines) {
      if (hidden.has(data.runs[line.run])) continue;
      const { x, y } = numbers(line);
      const across = settings.x === "time" ? seconds(line, x) : Array.from(x);
      if (!across) continue;
      const values = Array.from(y, (v) => (Number.isFinite(v) && !(settings.log && v <= 0) ? v : null));
      const stroke = colour(`run${line.colour % 8}`);
      const rows = [across, values];
      const is_smooth = settings.smoothing > 0;
      series.push({ label: line.label, stroke, width: is_smooth ? 1 : 1.5, alpha: is_smooth ? 0.3 : 1, spanGaps: false,
        points: { show: x.length < 40 }, value: (u, v) => format(v) });
      if (is_smooth) {
        rows.push(smoothed(values, settings.smoothing));
        series.push({ label: `${line.label}, smoothed`, stroke, width: 2, points: { show: false },
          value: (u, v) => format(v) });
      }
      tables.push(rows);
    }
    if (!tables.length) return null;
    return { rows: tables.length > 1 ? uPlot.join(tables) : tables[0], series };
  }

  function marks(about) {
    return {
      hooks: {
        draw: (u) => {
          if (!settings.marks || settings.x !== "step") return;
          const { ctx, bbox } = u;
          ctx.save();
          ctx.lineWidth = 1;
          ctx.setLineDash([4, 4]);
          for (const mark of data.marks) {
            if (mark.stage !== about.stage || hidden.has(data.runs[mark.run])) continue;
            const x = Math.round(u.valToPos(mark.step, "x", true)) + 0.5;
            if (x < bbox.left || x > bbox.left + bbox.width) continue;
            ctx.strokeStyle = colour(`mark-${mark.kind}`) || colour("soft");
            ctx.beginPath();
            ctx.moveTo(x, bbox.top);
            ctx.lineTo(x, bbox.top + bbox.height);
            ctx.stroke();
          }
          ctx.restore();
        },
      },
    };
  }

  function draw(place) {
    const about = data.charts[Number(place.dataset.chart)];
    const old = charts.find((each) => each.place === place);
    const found = table(about);
    if (old) {
      old.plot.destroy();
      charts.splice(charts.indexOf(old), 1);
    }
    place.replaceChildren();
    if (!found) {
      place.textContent = settings.x === "time" ? "the times of these steps are not known" : "no run is switched on";
      return;
    }
    const axis = { stroke: colour("soft"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line") } };
    const across = settings.x === "time" ? "seconds of training" : "step";
    const options = {
      width: Math.max(200, place.clientWidth), height: 220,
      cursor: { sync: { key: about.stage }, points: { size: 6 } },
      scales: { x: { time: false }, y: { distr: settings.log ? 3 : 1 } },
      axes: [{ ...axis, label: across, labelSize: 18, size: 34 }, { ...axis, size: 58, values: (u, all) => all.map(format) }],
      series: [{ label: across, value: (u, v) => format(v) }, ...found.series],
      legend: { live: true },
      plugins: [marks(about)],
    };
    charts.push({ plot: new uPlot(options, found.rows, place), place, about });
  }

  const places = Array.from(document.querySelectorAll("[data-chart]"));
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      seen.unobserve(entry.target);
      draw(entry.target);
    }
  }, { rootMargin: "300px" });
  places.forEach((place) => seen.observe(place));
  const redraw = () => charts.map((each) => each.place).forEach(draw);

  const resized = new ResizeObserver((entries) => {
    for (const entry of entries) {
      const chart = charts.find((each) => each.place === entry.target);
      const width = Math.max(200, entry.target.clientWidth);
      if (chart && chart.plot.width !== width) chart.plot.setSize({ width, height: 220 });
    }
  });
  places.forEach((place) => resized.observe(place));
  dark.addEventListener("change", redraw);

  const control = (id, change) => {
    const input = document.getElementById(id);
    if (input) input.addEventListener("input", () => { change(input); redraw(); });
  };
  control("smoothing", (input) => {
    settings.smoothing = Number(input.value) / 100;
    document.getElementById("smoothing-shown").textContent = settings.smoothing.toFixed(2);
  });
  control("log", (input) => { settings.log = input.checked; });
  control("marks", (input) => { settings.marks = input.checked; });
  control("across", (input) => { settings.x = input.checked ? "time" : "step"; });
  document.querySelectorAll("input[data-run]").forEach((input) => {
    input.addEventListener("input", () => {
      const name = data.runs[Number(input.dataset.run)];
      if (input.checked) hidden.delete(name); else hidden.add(name);
      redraw();
    });
  });
  const filter = document.getElementById("filter");
  filter?.addEventListener("input", () => {
    const wanted = filter.value.trim().toLowerCase();
    document.querySelectorAll("figure.chart").forEach((figure) => {
      figure.hidden = !figure.dataset.name.toLowerCase().includes(wanted);
    });
    document.querySelectorAll("section.charts").forEach((section) => {
      section.hidden = !section.querySelector("figure.chart:not([hidden])");
    });
  });
  window.report = { charts, settings, data };
})();
