"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const root = document.documentElement;
  const marks = { restart: "--run-3", skip: "--warning", rollback: "--warning", overflow: "--three" };
  const axisName = { step: "step", tokens: "tokens", hours: "hours of training" };
  let axis = "step";
  let logarithmic = false;
  let drawn = [];

  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const units = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
  const short = (value) => {
    if (value == null) return "";
    const unit = units.find(([size]) => Math.abs(value) >= size);
    if (unit) return +(value / unit[0]).toPrecision(4) + unit[1];
    if (value !== 0 && Math.abs(value) < 1e-3) return (+value.toPrecision(3)).toExponential();
    return String(+value.toPrecision(5));
  };

  // What the curves were at or before a point, in words.
  const reading = (u, plot) => {
    const at = u.cursor.idx;
    if (at == null) return "";
    const said = plot.curves.map((curve, number) => {
      if (!u.series[number + 1].show) return "";
      const values = u.data[number + 1];
      let place = at;
      while (place >= 0 && values[place] == null) place -= 1;
      return place < 0 ? "" : `${curve.name} ${short(values[place])}`;
    });
    return `${axisName[axis]} ${short(u.data[0][at])}: ${said.filter(Boolean).join(" · ")}`;
  };

  const drawMarks = (u, plot) => {
    if (!plot.marked) return;
    const { ctx, bbox } = u;
    ctx.save();
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
    for (const mark of figures.marks) {
      const x = u.valToPos(mark[axis], "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.strokeStyle = colour(marks[mark.kind]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  };

  const strokeOf = (curve) =>
    colour(figures.runs.length > 1 ? `--run-${curve.run % 6}` : curve.dotted ? "--two" : "--one");

  const draw = (figure) => {
    const plot = figures.plots[+figure.dataset.plot];
    const place = figure.querySelector(".canvas");
    const output = figure.querySelector("output");
    const muted = colour("--muted");
    const line = { stroke: colour("--line"), width: 1 };
    const data = uPlot.join(plot.curves.map((curve) => [curve[axis], curve.y]));
    const positive = plot.curves.every((curve) => curve.y.every((value) => value == null || value > 0));
    const axes = { stroke: muted, grid: line, ticks: line, font: "12px system-ui, sans-serif" };
    const options = {
      width: Math.max(240, place.clientWidth),
      height: 260,
      legend: { show: false },
      scales: { x: { time: false }, y: { distr: logarithmic && positive ? 3 : 1 } },
      cursor: { drag: { x: true, y: false } },
      axes: [
        { ...axes, label: axisName[axis], labelSize: 20, labelFont: axes.font, values: (u, all) => all.map(short) },
        { ...axes, size: 62, values: (u, all) => all.map(short) },
      ],
      series: [
        {},
        ...plot.curves.map((curve) => ({
          label: curve.name,
          stroke: strokeOf(curve),
          width: 1.6,
          dash: curve.dotted ? [6, 4] : undefined,
          spanGaps: true,
          points: { show: curve.dotted || curve.y.length < 3, size: 6, fill: strokeOf(curve) },
        })),
      ],
      hooks: {
        draw: [(u) => drawMarks(u, plot)],
        setCursor: [(u) => { output.textContent = reading(u, plot); }],
      },
    };
    place.replaceChildren();
    const made = new uPlot(options, data, place);
    place.querySelector(".uplot").setAttribute("aria-hidden", "true");
    for (const [number, hidden] of (figure.hidden_curves || []).entries()) {
      if (hidden) made.setSeries(number + 1, { show: false });
    }
    return { figure, plot, place, output, made };
  };

  const redraw = () => {
    for (const one of drawn) one.made.destroy();
    drawn = [...document.querySelectorAll("figure[data-plot]")].map(draw);
  };

  // The curves of a plot by name, each a button that hides or shows it.
  const addKeys = () => {
    for (const one of drawn) {
      const { figure, plot } = one;
      const key = figure.querySelector(".key");
      figure.hidden_curves = plot.curves.map(() => false);
      if (plot.curves.length < 2) continue;
      plot.curves.forEach((curve, number) => {
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = curve.name;
        button.setAttribute("aria-pressed", "true");
        const several = figures.runs.length > 1;
        button.className = several ? `run-${curve.run % 6}` : curve.dotted ? "two" : "one";
        if (curve.dotted) button.classList.add("dotted");
        button.addEventListener("click", () => {
          const hidden = (figure.hidden_curves[number] = !figure.hidden_curves[number]);
          button.setAttribute("aria-pressed", String(!hidden));
          drawn.find((each) => each.figure === figure).made.setSeries(number + 1, { show: !hidden });
        });
        const item = document.createElement("li");
        item.append(button);
        key.append(item);
      });
    }
  };

  const steer = (event) => {
    const one = drawn.find((each) => each.place === event.currentTarget);
    const last = one.made.data[0].length - 1;
    const now = one.made.cursor.idx;
    const jump = event.shiftKey ? 10 : 1;
    const moves = {
      ArrowRight: now == null ? 0 : Math.min(last, now + jump),
      ArrowLeft: now == null ? last : Math.max(0, now - jump),
      Home: 0,
      End: last,
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const left = one.made.valToPos(one.made.data[0][moves[event.key]], "x");
    one.made.setCursor({ left, top: one.made.bbox.height / devicePixelRatio / 2 });
  };

  redraw();
  addKeys();
  root.dataset.drawn = drawn.length;
  for (const one of drawn) one.place.addEventListener("keydown", steer);
  document.querySelector(".controls")?.addEventListener("change", (event) => {
    if (event.target.name === "axis") axis = event.target.value;
    else logarithmic = event.target.checked;
    redraw();
  });
  for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", redraw);
  const widths = new Map();
  const resized = new ResizeObserver((entries) => {
    for (const entry of entries) {
      const width = Math.round(entry.contentRect.width);
      if (widths.has(entry.target) && widths.get(entry.target) !== width) {
        const one = drawn.find((each) => each.place === entry.target);
        one.made.setSize({ width: Math.max(240, width), height: 260 });
      }
      widths.set(entry.target, width);
    }
  });
  for (const one of drawn) resized.observe(one.place);
})();
