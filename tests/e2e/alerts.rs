//! The alerting rules that come with Penstock: of the form that Prometheus reads, over metrics that a gateway serves.
//! Where `promtool` is installed, it must accept them as well.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use bench::mock::{Mock, Options};
use serde::Deserialize;
use serde_json::json;
use tests::Config;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    name: String,
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    alert: String,
    expr: String,
    #[serde(default)]
    r#for: Option<String>,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/alerts.yml")
}

fn groups() -> Vec<Group> {
    let text = fs::read_to_string(path()).expect("the file is there");
    serde_saphyr::from_str::<File>(&text).unwrap_or_else(|error| panic!("{error}")).groups
}

#[tokio::test(flavor = "multi_thread")]
async fn alerts_are_over_metrics_that_are_served() {
    let mock = Mock::start(Options::default()).expect("a mock");
    let gateway = Config::new().model("mock-model", &mock.url()).key("sk-ana", "acme/web/ana").start().await;
    let call = json!({"model": "mock-model", "messages": [{"role": "user", "content": "hi"}]});
    assert_eq!(gateway.client("sk-ana").chat(&call).await.status, 200);
    let served = gateway.admin().get("/metrics").await.text();
    let served: BTreeSet<&str> =
        served.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    for rule in groups().iter().flat_map(|group| &group.rules) {
        let named: Vec<&str> = rule
            .expr
            .split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'))
            .filter(|word| word.starts_with("penstock_"))
            .collect();
        assert!(!named.is_empty(), "{}: {}", rule.alert, rule.expr);
        for name in named {
            let family = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            let known = served.contains(name) || family.is_some_and(|family| served.contains(family));
            assert!(known, "{}: {name} is not served", rule.alert);
        }
    }
}

#[test]
fn alerts_are_well_formed() {
    let groups = groups();
    let unique = |names: Vec<&str>| names.iter().collect::<BTreeSet<_>>().len() == names.len();
    assert!(unique(groups.iter().map(|group| group.name.as_str()).collect()));
    assert!(unique(groups.iter().flat_map(|group| &group.rules).map(|rule| rule.alert.as_str()).collect()));
    for rule in groups.iter().flat_map(|group| &group.rules) {
        let Rule { alert, expr, r#for, labels, annotations } = rule;
        for (open, close) in [('(', ')'), ('{', '}'), ('[', ']')] {
            assert_eq!(expr.matches(open).count(), expr.matches(close).count(), "{alert}: {expr}");
        }
        let duration = |text: &String| text.ends_with('m') && text[..text.len() - 1].parse::<u32>().is_ok();
        assert!(r#for.as_ref().is_none_or(duration), "{alert}: {:?}", r#for);
        assert!(["info", "warning", "critical"].contains(&labels["severity"].as_str()), "{alert}");
        assert!(["summary", "action"].iter().all(|name| annotations.contains_key(*name)), "{alert}");
    }
    let promtool = Command::new("promtool").args(["check", "rules"]).arg(path()).output();
    if let Ok(checked) = promtool {
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    }
}
