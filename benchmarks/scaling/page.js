// Draws the scaling report.

const PARTS = [
  {key: 'compute', label: 'compute', color: '--compute'},
  {key: 'exposed_communication', label: 'exposed communication', color: '--exposed-communication'},
  {key: 'data_wait', label: 'data wait', color: '--data-wait'},
  {key: 'rest', label: 'rest', color: '--rest'},
];

const sizeOf = (item) => typeof item.raw === 'object' ? item.raw.x : Number(item.label);
const options = (x, y, label) => chartOptions(x, y, (items) => ranks(sizeOf(items[0])), label);

// A straight ideal needs linear or doubly logarithmic axes; the latter when
// world sizes are too far apart for the former.
function throughputChart(mode) {
  const rows = mode.configurations;
  const sizes = rows.map((row) => row.world_size);
  const type = sizes[sizes.length - 1] / sizes[0] > 8 ? 'logarithmic' : 'linear';
  const pad = (sizes[sizes.length - 1] - sizes[0]) * 0.06 || 0.5;
  const onlyMeasured = (scale) => { scale.ticks = sizes.map((value) => ({value, label: String(value)})); };
  const x = axis('ranks', {
    type,
    afterBuildTicks: onlyMeasured,
    ...(type === 'linear' ? {min: sizes[0] - pad, max: sizes[sizes.length - 1] + pad} : {}),
  });
  x.ticks.callback = (value) => sizes.includes(value) ? String(value) : '';
  x.ticks.autoSkip = false;
  const y = axis('images/s', {type, beginAtZero: type === 'linear'});
  y.ticks.callback = (value) => integer(value);
  const perRank = rows[0].images_per_second.median / sizes[0];
  return {
    type: 'scatter',
    plugins: [whiskers],
    data: {datasets: [
      {
        label: 'measured', showLine: true, pointStyle: 'circle', borderColor: color('--accent'), backgroundColor: color('--accent'),
        pointRadius: 4, borderWidth: 2,
        data: rows.map((row) => ({x: row.world_size, y: row.images_per_second.median})),
        ranges: rows.map((row) => [row.images_per_second.min, row.images_per_second.max]),
      },
      {
        label: 'ideal', showLine: true, pointStyle: 'line', borderColor: color('--ideal'), backgroundColor: color('--ideal'),
        pointRadius: 0, borderWidth: 2, borderDash: [6, 5],
        data: sizes.map((size) => ({x: size, y: perRank * size})),
      },
    ]},
    options: options(x, y, integer),
  };
}

function efficiencyChart(mode) {
  const rows = mode.configurations;
  const y = axis('efficiency', {beginAtZero: true, suggestedMax: 1.15});
  y.ticks.callback = (value) => value > 1.1 ? '' : percent(value, 0);
  return {
    type: 'bar',
    plugins: [barLabels],
    data: {labels: rows.map((row) => String(row.world_size)), datasets: [
      {
        label: 'measured', backgroundColor: color('--accent'), maxBarThickness: 56, pointStyle: 'rect',
        data: rows.map((row) => row.efficiency),
        labels: rows.map((row) => percent(row.efficiency, 0)),
      },
      {
        label: 'ideal', type: 'line', borderColor: color('--ideal'), backgroundColor: color('--ideal'),
        pointStyle: 'line', pointRadius: 0, order: -1, borderWidth: 2, borderDash: [6, 5], data: rows.map(() => 1),
      },
    ]},
    options: options(axis('ranks', {grid: {display: false}}), y, percent),
  };
}

// The ideal step: the baseline's, times the work that a rank has in comparison.
function idealSeconds(mode) {
  const base = mode.configurations[0];
  const perRank = (row) => row.global_batch / row.world_size;
  return mode.configurations.map((row) => base.step_seconds.mean * perRank(row) / perRank(base));
}

function partsChart(mode) {
  const rows = mode.configurations;
  const datasets = PARTS.map((part) => ({
    label: part.label, backgroundColor: color(part.color), maxBarThickness: 56, pointStyle: 'rect', stack: 'step',
    data: rows.map((row) => 1e3 * row.parts_seconds[part.key]),
  }));
  datasets.push({
    label: 'ideal step', type: 'line', showLine: false, pointStyle: 'line', pointRadius: 26, pointHoverRadius: 26,
    pointBorderWidth: 2, borderColor: color('--text'), backgroundColor: color('--text'), stack: 'ideal',
    data: idealSeconds(mode).map((seconds) => 1e3 * seconds), order: -1,
  });
  return {
    type: 'bar',
    data: {labels: rows.map((row) => String(row.world_size)), datasets},
    options: options(
        axis('ranks', {grid: {display: false}, stacked: true}), axis('ms a step', {stacked: true, beginAtZero: true}),
        (value) => value.toFixed(2) + ' ms'),
  };
}

const CHARTS = [
  {title: 'Throughput', build: throughputChart},
  {title: 'Efficiency', build: efficiencyChart},
  {title: 'Where a step goes', build: partsChart},
];

const TITLES = {
  strong: ['Strong scaling', (batch) => 'A step is ' + integer(batch) + ' images in all, split over the ranks.'],
  weak: ['Weak scaling', (batch) => 'A step is ' + integer(batch) + ' images on each rank.'],
};

function tableOf(mode) {
  const head = ['ranks', 'images/s', 'speed-up', 'efficiency', 'p50 ms', 'p99 ms',
                ...PARTS.map((part) => part.label), 'imbalance'];
  const body = mode.configurations.map((row) => element('tr', {},
      cell(row.world_size + (row.oversubscribed ? ' *' : '')),
      cell(integer(row.images_per_second.median),
           integer(row.images_per_second.min) + ' to ' + integer(row.images_per_second.max)),
      cell(row.speedup.toFixed(2) + '×'),
      cell(percent(row.efficiency)),
      cell(milliseconds(row.step_seconds.p50)),
      cell(milliseconds(row.step_seconds.p99)),
      ...PARTS.map((part) => cell(percent(row.parts_seconds[part.key] / row.step_seconds.mean),
                                  milliseconds(row.parts_seconds[part.key]) + ' ms')),
      cell(percent(row.imbalance))));
  return tableElement(head, body);
}

function notesOf(mode) {
  const notes = [];
  if (mode.configurations.some((row) => row.oversubscribed)) {
    notes.push('* More ranks than cores (' + report.machine.cores + '): they take turns.');
  }
  if (mode.baseline_world_size !== 1) {
    notes.push('Speed-up and efficiency are relative to ' + mode.baseline_world_size +
               ' ranks, the smallest world size measured.');
  }
  return notes.map((note) => element('p', {class: 'note'}, note));
}

function sectionOf(mode) {
  const [title, define] = TITLES[mode.mode];
  const charts = CHARTS.map(
      ({title: heading, build}) => chartCard(heading, title + ': ' + heading, () => build(mode)));
  return element('section', {},
      element('h2', {}, title),
      element('p', {class: 'definition'}, define(report.settings.batch_size)),
      element('p', {class: 'limits'}, mode.limits),
      element('div', {class: 'charts'}, ...charts),
      tableOf(mode), ...notesOf(mode));
}

document.getElementById('subtitle').textContent = report.settings.model + ' on ' + report.settings.dataset +
    ' · ranks are ' + report.settings.backend + ' · ' + coresText() + ' · ' + report.created;
document.getElementById('modes').append(...report.modes.map(sectionOf));
fillFacts([
  ['Ranks', report.settings.backend + ', ' + report.settings.threads_per_rank + ' thread each'],
  ['Length', report.settings.rounds + ' rounds of ' + report.settings.steps + ' timed steps after ' +
             report.settings.warmup_steps + ' warm-up steps'],
]);
startDrawing();
