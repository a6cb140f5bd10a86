// Draws `charts`, the charts of a report, each on the canvas of its number.
'use strict';

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim();

// Marks the range around each value, since one number hides it.
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

// Writes each bar's label above it.
const barLabels = {
  id: 'barLabels',
  afterDatasetsDraw(chart) {
    chart.data.datasets.forEach((dataset, index) => {
      if (!dataset.labels) return;
      const {ctx} = chart;
      ctx.save();
      ctx.fillStyle = color('text');
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

// Returns a value as the chart shows it.
function shown(chart, value) {
  if (chart.percent) return (100 * value).toFixed(chart.decimals) + '%';
  const digits = {minimumFractionDigits: chart.decimals, maximumFractionDigits: chart.decimals};
  return value.toLocaleString('en-US', digits) + chart.unit;
}

function axis(title, more) {
  return {
    title: {display: title !== '', text: title, color: color('muted')},
    ticks: {color: color('muted')},
    grid: {color: color('line')},
    ...more,
  };
}

// The ideal line is straight if both axes are linear or both are logarithmic.
// Axes are logarithmic if the positions are far apart.
function positionAxes(chart) {
  const {positions, places} = chart;
  const first = positions[0], last = positions[positions.length - 1];
  const type = last / first > 8 ? 'logarithmic' : 'linear';
  const pad = (last - first) * 0.06 || 0.5;
  const x = axis(chart.x_title, {
    type,
    afterBuildTicks: (scale) => { scale.ticks = positions.map((value, at) => ({value, label: places[at]})); },
    ...(type === 'linear' ? {min: first - pad, max: last + pad} : {}),
  });
  x.ticks.callback = (value) => places[positions.indexOf(value)] || '';
  x.ticks.autoSkip = places.length > 8;
  return {x, y: axis(chart.y_title, {type, beginAtZero: type === 'linear'})};
}

function axesOf(chart) {
  const stacked = chart.series.some((series) => series.stack !== '');
  // Room for the labels above the bars.
  const grace = chart.series.some((series) => series.labels.length > 0) ? '15%' : 0;
  const axes = chart.positions.length > 0 ? positionAxes(chart) : {
    x: axis(chart.x_title, {grid: {display: false}, stacked}),
    y: axis(chart.y_title, {beginAtZero: true, stacked, grace}),
  };
  axes.y.ticks.callback = (value) => chart.percent ? (100 * value).toFixed(0) + '%' :
      value.toLocaleString('en-US', {maximumSignificantDigits: 3});
  return axes;
}

const LOOKS = {
  bars: {maxBarThickness: 56, pointStyle: 'rect'},
  line: {showLine: true, pointStyle: 'circle', pointRadius: 4, borderWidth: 2},
  ideal: {type: 'line', showLine: true, pointStyle: 'line', pointRadius: 0, borderWidth: 2, borderDash: [6, 5], order: -1},
  level: {type: 'line', showLine: false, pointStyle: 'line', pointRadius: 26, pointHoverRadius: 26, pointBorderWidth: 2,
          order: -1},
};

function datasetOf(chart, series) {
  const dataset = {
    label: series.name, backgroundColor: color(series.color), borderColor: color(series.color), ...LOOKS[series.kind],
    data: chart.positions.length > 0 ? series.values.map((y, at) => ({x: chart.positions[at], y})) : series.values,
  };
  if (chart.positions.length > 0) delete dataset.type;
  if (series.stack) dataset.stack = series.stack;
  if (series.ranges.length > 0) dataset.ranges = series.ranges;
  if (series.labels.length > 0) dataset.labels = series.labels;
  return dataset;
}

function configOf(chart) {
  const titleOf = (item) => chart.places[item.dataIndex] + (chart.x_title ? ' ' + chart.x_title : '');
  return {
    type: chart.positions.length > 0 ? 'scatter' : 'bar',
    plugins: [whiskers, barLabels],
    data: {labels: chart.places, datasets: chart.series.map((series) => datasetOf(chart, series))},
    options: {
      animation: false,
      maintainAspectRatio: false,
      interaction: {mode: 'index', intersect: false},
      plugins: {
        legend: {
          position: 'bottom',
          labels: {
            color: color('text'), usePointStyle: true, boxWidth: 14, boxHeight: 7, padding: 12, font: {size: 11},
            sort: (a, b) => a.datasetIndex - b.datasetIndex,
          },
        },
        tooltip: {callbacks: {
          title: (items) => titleOf(items[0]),
          label: (item) => item.dataset.label + ': ' + shown(chart, item.parsed.y),
        }},
      },
      scales: axesOf(chart),
    },
  };
}

const drawn = [];

function draw() {
  Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
  drawn.splice(0).forEach((chart) => chart.destroy());
  document.querySelectorAll('canvas').forEach((canvas) => {
    drawn.push(new Chart(canvas, configOf(charts[Number(canvas.dataset.chart)])));
  });
}

draw();
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
