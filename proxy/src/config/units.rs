//! Durations like `30s` and sizes like `64MiB`.

use std::time::Duration;

use super::{read::At, tree::Value};

const MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// `250ms`, `30s`, `5m`, `2h`, `1d`, also summed: `1m30s`. Bare numbers are refused: their unit would be a guess.
pub(super) fn duration(at: At<'_>) -> Option<Duration> {
    let parsed = match &at.node.value {
        Value::Text { text, .. } => parse_duration(text),
        _ => None,
    };
    match parsed {
        Some(duration) if !duration.is_zero() && duration <= MAX => Some(duration),
        Some(_) => {
            at.problem(format!("{} is out of range", at.shown()), "write a duration from 1ms to 366d, such as 30s")
        }
        None => at.problem(
            format!("expected a duration, found {}", at.shown()),
            "write a number with its unit: 250ms, 30s, 5m, 2h",
        ),
    }
}

fn parse_duration(text: &str) -> Option<Duration> {
    let mut total = Duration::ZERO;
    let mut rest = text.trim();
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let unit = match &rest[..letters] {
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86400.0,
            _ => return None,
        };
        total = total.checked_add(Duration::try_from_secs_f64(number * unit).ok()?)?;
        rest = &rest[letters..];
    }
    Some(total)
}

/// `4096`, `512KiB`, `64MiB`, `1GiB` (and the decimal `kB`, `MB`, `GB`).
pub(super) fn size(at: At<'_>) -> Option<usize> {
    let parsed = match &at.node.value {
        Value::Text { text, .. } => parse_size(text),
        Value::Int(bytes) => u64::try_from(*bytes).ok(),
        _ => None,
    };
    match parsed.map(usize::try_from) {
        Some(Ok(size)) if (1..=1 << 34).contains(&size) => Some(size),
        Some(_) => {
            at.problem(format!("{} is out of range", at.shown()), "write a size from 1B to 16GiB, such as 64MiB")
        }
        None => at.problem(
            format!("expected a size, found {}", at.shown()),
            "write a number with its unit: 512KiB, 64MiB, 1GiB",
        ),
    }
}

fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let unit: u64 = match text[digits..].trim() {
        "" | "B" => 1,
        "kB" | "KB" => 1000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    number.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(parse_duration("1m30s"), Some(Duration::from_secs(90)));
        assert_eq!(parse_duration("250ms"), Some(Duration::from_millis(250)));
        assert_eq!(parse_duration("1.5h"), Some(Duration::from_secs(5400)));
        for wrong in ["", "30", "s", "-1s", "1 fortnight", "1e300s"] {
            assert_eq!(parse_duration(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn sizes_are_binary_or_decimal() {
        assert_eq!(parse_size("64MiB"), Some(64 << 20));
        assert_eq!(parse_size("10 kB"), Some(10_000));
        assert_eq!(parse_size("99999999999999999999GiB"), None);
        assert_eq!(parse_size("64mib"), None);
    }
}
