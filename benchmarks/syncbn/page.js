// Draws the SyncBN report.

const PARTS = [
  {key: 'kernels', label: 'kernels', short: 'kern.', color: '--kernels'},
  {key: 'communication', label: 'communication', short: 'comm.', color: '--communication'},
  {key: 'wait', label: 'wait', short: 'wait', color: '--wait'},
  {key: 'other', label: 'rest', short: 'rest', color: '--other'},
];

const KERNELS = ['moments', 'normalize', 'backward reduce', 'backward input'];

const SETS = {
  resnet18: 'ResNet-18 on 28 × 28',
  resnet50: 'ResNet-50 on 224 × 224',
  mobilenet: 'MobileNet V2 on 224 × 224',
  detection: 'Detection, a feature pyramid',
};

const fixed = (value, digits = 2) => value === null ? '–' : value.toFixed(digits);
const adaptive = (seconds) => (1e3 * seconds).toFixed(seconds < 0.01 ? 3 : 1);
const images = (count) => count + (count === 1 ? ' image' : ' images');

// Whose batch norm is called local.
const LIBRARY = report.settings.backend === 'nccl' ? 'cuDNN' : 'oneDNN';
const LOCALS = {local: 'local BN (' + LIBRARY + ')', own_local: 'own local BN'};

// What the bars of a shape are divided by: the faster of its local ones.
const unit = (pass) => pass[pass.faster_local].median;

const partsTotal = (split) => PARTS.reduce((sum, part) => sum + split[part.key], 0);

// One bar, of one colour, for each of `values`, in the stack of that name.
function bars(label, stack, colorName, values, more = {}) {
  return {label, stack, backgroundColor: color(colorName), maxBarThickness: 30, pointStyle: 'rect', data: values, ...more};
}

// The parts of `split` stacked up to the median of SyncBN, whose shares they are.
function partBars(rows, scale) {
  return PARTS.map((part) => bars('SyncBN: ' + part.label, 'sync', part.color, rows.map(
      (row) => row.split[part.key] / partsTotal(row.split) * row.sync.median * scale(row))));
}

function timesChart(layers) {
  const rows = layers.map((layer) => layer.passes.both);
  const datasets = [];
  if (rows.every((row) => row.local)) {
    datasets.push(bars(LOCALS.local, 'local', '--local', rows.map((row) => row.local.median / unit(row))));
  }
  datasets.push(bars(LOCALS.own_local, 'own', '--own-local', rows.map((row) => row.own_local.median / unit(row))));
  datasets.push(...partBars(rows, (row) => 1 / unit(row)));
  if (rows.every((row) => row.torch)) {
    datasets.push(bars('PyTorch, local', 'torch', '--torch', rows.map((row) => row.torch.median / unit(row))));
  }
  return {
    type: 'bar',
    data: {labels: layers.map((layer) => layer.shape), datasets},
    options: chartOptions(
        axis('height × width × channels', {grid: {display: false}, stacked: true}),
        axis('times the faster local BN', {stacked: true, beginAtZero: true}),
        (items) => items[0].label, (value) => value.toFixed(3)),
  };
}

function boundChart(layers) {
  const fraction = (layer, name) => layer.kernels.find((kernel) => kernel.kernel === name).bound_fraction;
  const y = axis('of the copy’s bound', {beginAtZero: true});
  y.ticks.callback = (value) => percent(value, 0);
  return {
    type: 'bar',
    data: {labels: layers.map((layer) => layer.shape), datasets: KERNELS.map(
        (name) => bars(name, name, '--' + name.replace(' ', '-'), layers.map((layer) => fraction(layer, name))))},
    options: chartOptions(
        axis('height × width × channels', {grid: {display: false}}), y, (items) => items[0].label, (value) => percent(value)),
  };
}

function layerRows(layer) {
  return ['forward', 'backward', 'both'].map((name, index) => {
    const pass = layer.passes[name];
    const total = partsTotal(pass.split);
    return element('tr', {},
        cell(index === 0 ? layer.shape : ''),
        cell(name),
        cell(pass.local ? adaptive(pass.local.median) : '–'),
        cell(adaptive(pass.own_local.median)),
        cell(adaptive(pass.sync.median), adaptive(pass.sync.p25) + ' to ' + adaptive(pass.sync.p75)),
        cell(fixed(pass.ratio)),
        cell((1e6 * pass.message).toFixed(1)),
        cell(fixed(pass.beyond)),
        ...PARTS.map((part) => cell(percent(pass.split[part.key] / total))),
        cell(pass.torch ? adaptive(pass.torch.median) : '–'));
  });
}

const HEAD = ['shape', 'pass', 'local ms', 'own ms', 'SyncBN ms', 'ratio', 'message µs', 'beyond',
              ...PARTS.map((part) => part.short), 'PyTorch ms'];

function setSection(set) {
  const layers = report.layers.filter((layer) => layer.set === set);
  const title = SETS[set] || set;
  const definition = images(layers[0].n) + ' on each of ' + ranks(report.settings.world_size) + ', ' +
      report.settings.dtype + ', ' + report.settings.layout;
  return element('section', {},
      element('h2', {}, title),
      element('p', {class: 'definition'}, definition),
      element('div', {class: 'charts'},
          chartCard('Forward and backward', title + ': times', () => timesChart(layers)),
          chartCard('Kernels of SyncBN', title + ': bounds', () => boundChart(layers))),
      tableElement(HEAD, layers.flatMap(layerRows)));
}

function networkChart(network) {
  const datasets = [
    bars(LOCALS.own_local, 'step', '--own-local', [1e3 * network.local.median, null]),
    ...partBars([network], () => 1e3)
        .filter((part) => part.label !== 'SyncBN: kernels')
        .map((part) => ({
          ...part, stack: 'step', data: [null, part.data[0]],
          ...(part.label === 'SyncBN: rest' ? {label: 'SyncBN: computing', backgroundColor: color('--kernels')} : {}),
        })).reverse(),
  ];
  return {
    type: 'bar',
    data: {labels: [LOCALS.own_local, 'SyncBN'], datasets: datasets.map((set) => ({...set, maxBarThickness: 70}))},
    options: chartOptions(
        axis('', {grid: {display: false}, stacked: true}), axis('ms a step', {stacked: true, beginAtZero: true}),
        (items) => items[0].label, (value) => value.toFixed(2) + ' ms'),
  };
}

function networkSection(network) {
  const total = partsTotal(network.split);
  const facts = [
    ['Own local BN', adaptive(network.local.median) + ' ms a step (' + adaptive(network.local.p25) + ' to ' +
                 adaptive(network.local.p75) + ')'],
    ['SyncBN', adaptive(network.sync.median) + ' ms a step (' + adaptive(network.sync.p25) + ' to ' +
               adaptive(network.sync.p75) + ')'],
    ['SyncBN’s share of the step', percent(network.share)],
    ['Messages of SyncBN', network.messages + ' a step, ' + integer(network.message_bytes) + ' bytes of each rank'],
    ['Communication', percent(network.split.communication / total, 2) + ' of the step'],
    ['Waiting for the last rank', percent(network.split.wait / total, 2) + ' of the step'],
  ];
  const rows = facts.map(([name, value]) => element('tr', {}, element('th', {scope: 'row'}, name), element('td', {}, value)));
  return element('section', {},
      element('h2', {}, 'ResNet-18, a training step'),
      element('p', {class: 'definition'}, images(network.per_rank_batch) + ' of 28 × 28 on each of ' +
              ranks(report.settings.world_size) + ', float32; forward, backward, sum of gradients'),
      element('div', {class: 'charts'},
          chartCard('A step', 'ResNet-18: step', () => networkChart(network)),
          element('table', {class: 'facts'}, element('tbody', {}, ...rows))));
}

function barsTable() {
  return tableElement(['shape', 'beyond', 'over', 'bar', ''], report.bars.map((bar) => element('tr', {},
      cell(bar.shape), cell(fixed(bar.value)), cell(LOCALS[bar.against]), cell('≤ ' + fixed(bar.at_most)),
      element('td', {class: bar.met ? 'met' : 'not-met'}, bar.met ? 'met' : 'not met'))));
}

function barsSection() {
  return element('section', {},
      element('h2', {}, 'The bar'),
      element('p', {class: 'definition'}, 'At 2 ranks with a core each, in float32, SyncBN costs at most 1.15 times the ' +
              'faster local BN beyond its message, for ResNet-18’s shapes, forward and backward.'),
      report.no_bar ? element('p', {}, 'Not stated here: ' + report.no_bar + '.') : barsTable());
}

document.getElementById('subtitle').textContent = ranks(report.settings.world_size) + ' (' + report.settings.backend +
    ') · ' + report.settings.dtype + ' ' + report.settings.layout + ' · ' + coresText() + ' · ' + report.created;
const sections = [...new Set(report.layers.map((layer) => layer.set))].map(setSection);
if (report.network) sections.push(networkSection(report.network));
if (report.layers.length > 0) sections.push(barsSection());
document.getElementById('sections').append(...sections);
document.getElementById('library').textContent = LIBRARY;
fillFacts([
  ['Ranks', report.settings.world_size + ' ' + report.settings.backend + ', 1 thread each'],
  ...(report.gpu ? [['GPU', report.gpu + (report.shared_gpu ? ', shared by ranks: times say nothing' : '')]] : []),
  ['Peer', report.peer || 'none'],
  ...report.not_available.map((why) => ['Not measured', why]),
]);
startDrawing();
