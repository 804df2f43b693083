//! `docs/settlement.md` names a test for each row, and each of them exists.

use std::collections::BTreeSet;
use std::path::Path;

#[test]
fn every_row_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = std::fs::read_to_string(root.join("docs/settlement.md")).unwrap();
    let mut tests = BTreeSet::new();
    for folder in ["proxy/tests/it/gateway", "proxy/tests/it/quota", "proxy/tests/it/faults", "tests/e2e"] {
        for file in std::fs::read_dir(root.join(folder)).unwrap() {
            let text = std::fs::read_to_string(file.unwrap().path()).unwrap_or_default();
            let names = text.lines().filter_map(|line| line.trim_start().strip_prefix("async fn ")?.split('(').next());
            tests.extend(names.map(str::to_owned));
        }
    }
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with('|')).skip(2).collect();
    assert!(rows.len() > 20);
    for row in rows {
        let cells: Vec<&str> = row.split('|').skip(3).take(2).collect();
        let named: Vec<&str> = cells.iter().flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
        assert!(!named.is_empty(), "no test for {row}");
        for name in named {
            assert!(tests.contains(name), "there is no test {name}: {row}");
        }
    }
}
