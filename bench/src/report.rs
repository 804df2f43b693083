//! What a run found, as a table for people and as JSON for scripts: figures with their spread over repetitions, and
//! the machine they hold for.

use serde::Serialize;

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub title: String,
    pub machine: Machine,
    pub sections: Vec<Section>,
    /// What must be known to read the figures.
    pub notes: Vec<String>,
    /// Targets with what was measured, where the run has any.
    pub targets: Vec<TargetMet>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Section {
    pub title: String,
    pub columns: Vec<String>,
    pub rows: Vec<Row>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub name: String,
    pub cells: Vec<Option<Figure>>,
}

/// The median of some repetitions, and their range.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figure {
    pub median: f64,
    pub min: f64,
    pub max: f64,
    pub runs: usize,
}

impl Figure {
    /// `None` of nothing.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median = match values.len() {
            0 => return None,
            n if n % 2 == 1 => values[middle],
            _ => f64::midpoint(values[middle - 1], values[middle]),
        };
        Some(Self { median, min: values[0], max: values[values.len() - 1], runs: values.len() })
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct TargetMet {
    pub name: String,
    pub at_most: f64,
    /// `None` when the run could not measure it: that is a miss.
    pub measured: Option<f64>,
    pub met: bool,
}

impl TargetMet {
    pub fn at_most(name: &str, at_most: f64, measured: Option<f64>) -> Self {
        Self { name: name.to_owned(), at_most, measured, met: measured.is_some_and(|value| value <= at_most) }
    }
}

/// Where the figures were taken.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Machine {
    pub cpu: String,
    pub cores: usize,
    pub memory_gib: f64,
    pub kernel: String,
    /// One-minute load average before the run: what else went on.
    pub load_before: f64,
}

impl Machine {
    pub fn here() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        Self::parse(
            &read("/proc/cpuinfo"),
            &read("/proc/meminfo"),
            &read("/proc/sys/kernel/osrelease"),
            &read("/proc/loadavg"),
        )
    }

    fn parse(cpuinfo: &str, meminfo: &str, osrelease: &str, loadavg: &str) -> Self {
        let field = |text: &str, name: &str| -> Option<String> {
            let line = text.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let first = |text: &str| text.split_whitespace().next().and_then(|word| word.parse::<f64>().ok());
        Self {
            cpu: field(cpuinfo, "model name").unwrap_or_else(|| "unknown".into()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_gib: field(meminfo, "MemTotal").and_then(|text| first(&text)).unwrap_or(0.0) / (1024.0 * 1024.0),
            kernel: osrelease.trim().to_owned(),
            load_before: first(loadavg).unwrap_or(0.0),
        }
    }
}

impl Report {
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    pub fn all_targets_met(&self) -> bool {
        self.targets.iter().all(|target| target.met)
    }

    pub fn render(&self) -> String {
        let m = &self.machine;
        let mut out = format!(
            "{}\n\n{} x {}, {:.0} GiB, Linux {}, load average {:.1} before the run\n\n",
            self.title, m.cores, m.cpu, m.memory_gib, m.kernel, m.load_before
        );
        for section in &self.sections {
            out.push_str(&section.render());
            out.push('\n');
        }
        for target in &self.targets {
            let verdict = if target.met { "met" } else { "MISSED" };
            let (at_most, measured) = (number(target.at_most), target.measured.map_or("nothing".into(), number));
            out.push_str(&format!("target {}: at most {at_most}, measured {measured} - {verdict}\n", target.name));
        }
        for note in &self.notes {
            out.push_str(&format!("note: {note}\n"));
        }
        out
    }
}

impl Section {
    pub fn new(title: &str, columns: &[&str]) -> Self {
        Self {
            title: title.into(),
            columns: columns.iter().map(|column| (*column).to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    pub fn row(&mut self, name: &str, cells: Vec<Option<Figure>>) {
        self.rows.push(Row { name: name.into(), cells });
    }

    /// Rows as lines, columns aligned: the median, and the range where there is one.
    fn render(&self) -> String {
        let header = std::iter::once(self.title.clone()).chain(self.columns.iter().cloned()).collect();
        let rows = self.rows.iter().map(|row| {
            std::iter::once(row.name.clone())
                .chain(row.cells.iter().map(|cell| cell.map_or("-".into(), cell_text)))
                .collect()
        });
        let lines: Vec<Vec<String>> = std::iter::once(header).chain(rows).collect();
        let widths: Vec<usize> = (0..=self.columns.len())
            .map(|column| {
                lines.iter().filter_map(|line| line.get(column)).map(|text| text.chars().count()).max().unwrap_or(0)
            })
            .collect();
        let mut out = String::new();
        for line in &lines {
            let padded: Vec<String> = line.iter().zip(&widths).map(|(text, width)| format!("{text:<width$}")).collect();
            out.push_str(padded.join("  ").trim_end());
            out.push('\n');
        }
        out
    }
}

fn cell_text(figure: Figure) -> String {
    if figure.runs < 2 {
        return number(figure.median);
    }
    format!("{} [{} .. {}]", number(figure.median), number(figure.min), number(figure.max))
}

/// Three significant digits, thousands in full.
fn number(value: f64) -> String {
    let size = value.abs();
    if size >= 100.0 || value == 0.0 {
        format!("{value:.0}")
    } else if size >= 10.0 {
        format!("{value:.1}")
    } else if size >= 1.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.3}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_count_is_between() {
        let figure = Figure::of([4.0, 1.0, 2.0, 3.0, f64::NAN]).unwrap();
        assert_eq!((figure.median, figure.min, figure.max, figure.runs), (2.5, 1.0, 4.0, 4));
        assert_eq!(Figure::of([]), None);
    }

    #[test]
    fn the_machine_is_read_from_proc() {
        let machine = Machine::parse(
            "processor\t: 0\nmodel name\t: A B\n",
            "MemTotal:       2097152 kB\n",
            "6.1.0-x\n",
            "1.50 1.2 1.0 1/2 3\n",
        );
        assert_eq!((machine.cpu.as_str(), machine.memory_gib, machine.load_before), ("A B", 2.0, 1.5));
        assert_eq!(machine.kernel, "6.1.0-x");
    }

    #[test]
    fn a_table_aligns_and_shows_the_spread() {
        let mut section = Section::new("what", &["rps", "ms"]);
        section.row("direct", vec![Figure::of([1000.0, 3000.0, 2000.0]), None]);
        section.row("a longer name", vec![Figure::of([1.0]), Figure::of([0.25])]);
        let expect = "what           rps                  ms\n\
                      direct         2000 [1000 .. 3000]  -\n\
                      a longer name  1.00                 0.250\n";
        assert_eq!(section.render(), expect);
    }

    #[test]
    fn a_missed_target_is_said() {
        let report = Report {
            title: "t".into(),
            machine: Machine::parse("", "", "", ""),
            sections: vec![],
            notes: vec![],
            targets: vec![TargetMet::at_most("x", 1.0, Some(2.0)), TargetMet::at_most("y", 1.0, None)],
        };
        assert!(!report.all_targets_met());
        assert!(report.render().contains("target x: at most 1.00, measured 2.00 - MISSED"));
        assert!(report.render().contains("target y: at most 1.00, measured nothing - MISSED"));
    }
}
