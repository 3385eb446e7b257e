// Numbers in words that a person reads.

const whole = new Intl.NumberFormat("en-GB");
const short = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

export const NOTHING = "–";

export function count(number) {
  return number < 100000 ? whole.format(Math.round(number)) : short.format(number);
}

export function counted(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

export function seconds(time) {
  if (time === null || time === undefined) return NOTHING;
  if (time < 0.001) return `${Math.round(time * 1e6)} µs`;
  if (time < 0.01) return `${(time * 1000).toFixed(1)} ms`;
  if (time < 1) return `${Math.round(time * 1000)} ms`;
  if (time < 60) return `${time.toFixed(time < 10 ? 2 : 1)} s`;
  return duration(time);
}

export function duration(time) {
  const minutes = Math.floor(time / 60);
  if (minutes < 1) return `${Math.floor(time)} s`;
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days`;
}

export function percent(share) {
  if (share === null || share === undefined || Number.isNaN(share)) return NOTHING;
  return `${(share * 100).toFixed(share > 0 && share < 0.1 ? 1 : 0)}%`;
}

export function money(amount) {
  if (amount === 0) return "0";
  if (Math.abs(amount) < 0.01) return amount.toPrecision(2).replace(/e-0*(\d+)$/, " × 10⁻$1");
  return amount.toLocaleString("en-GB", { maximumFractionDigits: amount < 10 ? 3 : 0 });
}

// As it is written in a configuration, whatever a computer makes of it.
export function price(amount) {
  return String(Number(amount.toPrecision(6)));
}

export function timeOfDay(unixSeconds) {
  return clock.format(new Date(unixSeconds * 1000));
}
