// What the pages of all reports share. Text reaches a page as text nodes only,
// never as markup. `report` is the report's JSON.
'use strict';

const percent = (share, digits = 1) => (100 * share).toFixed(digits) + '%';
const integer = (value) => Math.round(value).toLocaleString('en-US');
const milliseconds = (seconds) => (1e3 * seconds).toFixed(2);
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const ranks = (count) => count + (count === 1 ? ' rank' : ' ranks');

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Marks the range of the rounds, since one number hides it.
const whiskers = {
  id: 'whiskers',
  afterDatasetsDraw(chart) {
    chart.data.datasets.forEach((dataset, index) => {
      if (!dataset.ranges) return;
      const {ctx, scales: {y}} = chart;
      ctx.save();
      ctx.strokeStyle = dataset.borderColor;
      ctx.lineWidth = 1.5;
      ctx.beginPath();
      chart.getDatasetMeta(index).data.forEach((point, at) => {
        const [low, high] = dataset.ranges[at].map((value) => y.getPixelForValue(value));
        ctx.moveTo(point.x, low);
        ctx.lineTo(point.x, high);
        for (const end of [low, high]) {
          ctx.moveTo(point.x - 5, end);
          ctx.lineTo(point.x + 5, end);
        }
      });
      ctx.stroke();
      ctx.restore();
    });
  },
};

// Writes each bar's value above it.
const barLabels = {
  id: 'barLabels',
  afterDatasetsDraw(chart) {
    chart.data.datasets.forEach((dataset, index) => {
      if (!dataset.labels) return;
      const {ctx} = chart;
      ctx.save();
      ctx.fillStyle = color('--text');
      ctx.font = '600 12px ' + Chart.defaults.font.family;
      ctx.textAlign = 'center';
      ctx.textBaseline = 'bottom';
      chart.getDatasetMeta(index).data.forEach((bar, at) => {
        ctx.fillText(dataset.labels[at], bar.x, bar.y - 3);
      });
      ctx.restore();
    });
  },
};

function axis(title, more = {}) {
  return {
    title: {display: true, text: title, color: color('--muted')},
    ticks: {color: color('--muted')},
    grid: {color: color('--line')},
    ...more,
  };
}

// title: of a tooltip's items; label: of a value.
function chartOptions(x, y, title, label) {
  return {
    animation: false,
    maintainAspectRatio: false,
    interaction: {mode: 'index', intersect: false},
    plugins: {
      legend: {
        position: 'bottom',
        labels: {
          color: color('--text'), usePointStyle: true, boxWidth: 14, boxHeight: 7, padding: 12, font: {size: 11},
          sort: (a, b) => a.datasetIndex - b.datasetIndex,
        },
      },
      tooltip: {callbacks: {
        title,
        label: (item) => item.dataset.label + ': ' + label(item.parsed.y),
      }},
    },
    scales: {x, y},
  };
}

const drawn = [];

// A canvas under a heading; build() gives its chart, once for each colour scheme.
function chartCard(heading, label, build) {
  const canvas = element('canvas', {role: 'img', 'aria-label': label + '; the table has the numbers'});
  drawn.push({canvas, build, chart: null});
  return element('div', {class: 'chart'}, element('h3', {}, heading), element('div', {}, canvas));
}

function cell(text, small) {
  const made = element('td', {}, text);
  if (small) made.append(element('small', {}, small));
  return made;
}

function tableElement(head, rows) {
  return element('div', {class: 'scroll'}, element('table', {},
      element('thead', {}, element('tr', {}, ...head.map((text) => element('th', {scope: 'col'}, text)))),
      element('tbody', {}, ...rows)));
}

const coresText = () => report.machine.cpu + ', ' + report.machine.cores + (report.machine.cores === 1 ? ' core' : ' cores');

// Rows of the table #facts: the machine, the given pairs, and where the report is from.
function fillFacts(pairs) {
  const {machine} = report;
  const facts = [
    ['Machine', coresText() + ', ' + (machine.memory_bytes / 2 ** 30).toFixed(0) + ' GiB, ' + machine.system],
    ...pairs,
    ['Date', report.created],
    ['Commit', report.commit || 'unknown'],
  ];
  const rows = facts.map(([name, value]) => element('tr', {}, element('th', {scope: 'row'}, name), element('td', {}, value)));
  rows.push(element('tr', {}, element('th', {scope: 'row'}, 'Command'),
                    element('td', {}, element('code', {}, report.command))));
  document.getElementById('facts').append(...rows);
}

function draw() {
  Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
  for (const entry of drawn) {
    if (entry.chart) entry.chart.destroy();
    entry.chart = new Chart(entry.canvas, entry.build());
  }
}

// Draws, now and when the colour scheme changes.
function startDrawing() {
  draw();
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
}
