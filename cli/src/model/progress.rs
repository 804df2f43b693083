//! The bar a person sees while a file comes in. Hidden when standard error is no terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

const KNOWN: &str = "{msg} [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec} eta {eta}";
const UNKNOWN: &str = "{msg} {spinner} {bytes} {bytes_per_sec}";

pub fn bar(name: &str, total: Option<u64>) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr_with_hz(8));
    let template = if total.is_some() { KNOWN } else { UNKNOWN };
    // A template that does not parse would only cost the looks of the bar.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.enable_steady_tick(Duration::from_millis(250));
    bar.with_message(name.to_owned())
}
