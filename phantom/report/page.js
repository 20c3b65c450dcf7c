"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const redraws = [];
  const redraw = () => redraws.forEach((draw) => draw());

  function seconds(value) {
    for (const [unit, scale] of [["s", 1], ["ms", 1e-3], ["us", 1e-6]]) {
      if (Math.abs(value) >= scale) return (value / scale).toPrecision(4) + " " + unit;
    }
    return value ? (value * 1e9).toPrecision(3) + " ns" : "0 s";
  }
  function size(value) {
    for (const [unit, scale] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
      if (value >= scale) return (value / scale).toFixed(value >= 10 * scale ? 0 : 1) + " " + unit;
    }
    return value + " B";
  }

  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("resize", redraw);

  for (const button of document.querySelectorAll("button.sort")) {
    button.addEventListener("click", () => {
      const head = button.closest("th");
      const body = head.closest("table").tBodies[0];
      const at = head.cellIndex;
      const number = head.classList.contains("number") || head.classList.contains("bar");
      const up = head.getAttribute("aria-sort") === (number ? "descending" : null) ||
        (!number && head.getAttribute("aria-sort") !== "ascending");
      const key = (row) => {
        const cell = row.cells[at];
        return number ? Number(cell.dataset.key || 0) : cell.textContent;
      };
      const rows = [...body.rows].sort((a, b) => {
        const [x, y] = [key(a), key(b)];
        const order = number ? x - y : x.localeCompare(y);
        return up ? order : -order;
      });
      for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      body.append(...rows);
    });
  }

  function overview() {
    const canvas = document.getElementById("overview-canvas");
    const pick = document.getElementById("overview-step");
    if (!canvas || !pick) return;
    const said = document.getElementById("overview-said");
    const names = ["idle", "compute", "exposed transfer", "waiting for other ranks"];
    let cursor = null;
    const left = 44, bottom = 22;

    function draw() {
      const step = data.overview[pick.value];
      const rows = step.rows;
      const height = Math.max(8, Math.min(26, Math.floor(560 / rows.length)));
      const width = canvas.parentElement.clientWidth;
      const tall = rows.length * height + bottom;
      const ratio = window.devicePixelRatio || 1;
      canvas.style.height = tall + "px";
      canvas.width = width * ratio;
      canvas.height = tall * ratio;
      const c = canvas.getContext("2d");
      c.scale(ratio, ratio);
      const colours = ["--idle", "--compute", "--transfer", "--waiting"].map(colour);
      const inner = width - left - 4;
      c.font = "12px system-ui, sans-serif";
      c.textBaseline = "middle";
      const every = Math.ceil(14 / height);
      rows.forEach(([rank, line], y) => {
        let from = 0;
        for (let x = 1; x <= line.length; x++) {
          if (x === line.length || line[x] !== line[from]) {
            c.fillStyle = colours[Number(line[from])];
            const a = left + inner * from / line.length;
            c.fillRect(a, y * height + 1, left + inner * x / line.length - a + 0.3, height - 2);
            from = x;
          }
        }
        if (y % every === 0) {
          c.fillStyle = colour("--muted");
          c.textAlign = "right";
          c.fillText(String(rank), left - 6, y * height + height / 2);
        }
      });
      c.fillStyle = colour("--muted");
      const ticks = width < 500 ? 2 : 5;
      for (let i = 0; i <= ticks; i++) {
        c.textAlign = i === 0 ? "left" : i === ticks ? "right" : "center";
        c.fillText(seconds(step.length_s * i / ticks), left + inner * i / ticks, tall - bottom / 2);
      }
      if (cursor) {
        const count = rows[0][1].length;
        c.strokeStyle = colour("--text");
        c.lineWidth = 1.5;
        const x = left + inner * (cursor.x + 0.5) / count;
        c.beginPath();
        c.moveTo(x, 0);
        c.lineTo(x, rows.length * height);
        c.stroke();
        c.strokeRect(left, cursor.y * height + 0.5, inner, height - 1);
        const [rank, line] = rows[cursor.y];
        said.textContent = `rank ${rank}, ${seconds(step.length_s * (cursor.x + 0.5) / count)} into the step: ${names[Number(line[cursor.x])]}`;
      }
      canvas.rowHeight = height;
    }
    function move(x, y) {
      const rows = data.overview[pick.value].rows;
      cursor = {
        x: Math.min(Math.max(x, 0), rows[0][1].length - 1),
        y: Math.min(Math.max(y, 0), rows.length - 1),
      };
      draw();
    }
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      const count = data.overview[pick.value].rows[0][1].length;
      const share = (event.clientX - box.left - left) / (box.width - left - 4);
      move(Math.floor(share * count), Math.floor((event.clientY - box.top) / canvas.rowHeight));
    });
    canvas.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (!by) return;
      event.preventDefault();
      const leap = event.shiftKey ? 20 : 1;
      const at = cursor || { x: 0, y: 0 };
      move(at.x + by[0] * leap, at.y + by[1]);
    });
    pick.addEventListener("change", () => { cursor = null; draw(); });
    redraws.push(draw);
    draw();
  }

  function memory() {
    const svg = document.getElementById("memory-curve");
    const pick = document.getElementById("memory-rank");
    if (!svg || !pick) return;
    const capacity = data.memory.capacity;
    const make = (name, attributes, text) => {
      const element = document.createElementNS("http://www.w3.org/2000/svg", name);
      for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
      if (text !== undefined) element.textContent = text;
      svg.append(element);
    };
    function draw() {
      for (const holders of document.querySelectorAll(".holders")) holders.hidden = holders.dataset.rank !== pick.value;
      const curve = data.memory.ranks[pick.value];
      const width = svg.parentElement.clientWidth, height = 256;
      const left = 64, right = 10, top = 14, bottom = 26;
      svg.replaceChildren();
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      const begin = curve.time_s[0], end = curve.time_s[curve.time_s.length - 1];
      const highest = Math.max(...curve.reserved, ...curve.allocated, 1);
      const showCapacity = capacity && highest > capacity / 3;
      const most = showCapacity ? capacity * 1.05 : highest * 1.1;
      const x = (t) => left + (width - left - right) * (end > begin ? (t - begin) / (end - begin) : 0);
      const y = (v) => height - bottom - (height - top - bottom) * v / most;
      for (let i = 0; i <= 4; i++) {
        const v = most * i / 4;
        make("line", { class: "grid", x1: left, x2: width - right, y1: y(v), y2: y(v) });
        make("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, size(Math.round(v)));
      }
      const ticks = width < 500 ? 2 : 4;
      for (let i = 0; i <= ticks; i++) {
        const t = begin + (end - begin) * i / ticks;
        make("text", { x: x(t), y: height - 8, "text-anchor": i === 0 ? "start" : i === ticks ? "end" : "middle" }, seconds(t));
      }
      for (const name of ["reserved", "allocated"]) {
        let path = "";
        curve.time_s.forEach((t, i) => {
          path += i === 0 ? `M${x(t)} ${y(curve[name][i])}` : `H${x(t)}V${y(curve[name][i])}`;
        });
        make("path", { class: name, d: path });
      }
      if (showCapacity) {
        make("line", { class: "capacity", x1: left, x2: width - right, y1: y(capacity), y2: y(capacity) });
        make("text", { x: width - right, y: y(capacity) - 4, "text-anchor": "end" }, "memory of the GPU");
      }
      make("line", { class: "peak", x1: x(curve.peak_s), x2: x(curve.peak_s), y1: top, y2: height - bottom });
    }
    pick.addEventListener("change", draw);
    redraws.push(draw);
    draw();
  }

  overview();
  memory();
})();
