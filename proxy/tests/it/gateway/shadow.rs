//! A rule in shadow as a client and an operator see it.

use super::{
    rig::{Kind, Rig, Settings, chat, on_both_stores},
    upstream::{self, Upstream},
};

const OK: &str = "{\"choices\":[],\"usage\":{\"prompt_tokens\":8,\"completion_tokens\":92}}";

on_both_stores!(a_shadow_rule_refuses_nothing_and_tells_what_it_would_have_refused);

async fn a_shadow_rule_refuses_nothing_and_tells_what_it_would_have_refused(store: Kind) {
    let upstream = Upstream::start(|_| upstream::json(200, OK)).await;
    let quotas = "quotas:\n  - { level: org, match: acme, limits: [{ tokens: 100000, per: lifetime }] }\n  \
        - { level: org, match: \"ac*\", shadow: true, limits: [{ tokens: 250, per: lifetime }, { max_request: { tokens: 400 } }] }\n  \
        - { level: user, match: ana, shadow: true, limits: [{ requests: 3, per: lifetime }] }";
    let rig = Rig::with(&upstream, Settings { store, quotas: Some(quotas.into()), ..Settings::default() }).await;
    let get = super::ops::admin(&rig).await;
    for (cap, remaining) in [(92, 99_900), (92, 99_800), (92, 99_700), (393, 99_299)] {
        let answer = rig.chat(&chat(&format!(",\"max_tokens\":{cap}"))).await;
        assert_eq!((answer.status, answer.number("x-ratelimit-limit-tokens")), (200, 100_000));
        assert_eq!(answer.number("x-ratelimit-remaining-tokens"), remaining);
        assert_eq!(answer.header("x-ratelimit-limit-requests"), None, "a shadow limit never shows");
        rig.balance().await;
    }
    let told: Vec<Vec<String>> = rig
        .lines(4)
        .await
        .iter()
        .map(|line| line.decision.shadow.iter().map(|by| format!("{} {}", by.level, by.limit)).collect())
        .collect();
    let (tokens, request, requests) = ("org tokens/lifetime", "org max_request/tokens", "user requests/lifetime");
    assert_eq!(told, [vec![], vec![], vec![tokens], vec![request, requests, tokens]]);
    let text = get("/metrics").await.text();
    for (level, limit, count) in
        [("org", "tokens/lifetime", 2), ("org", "max_request/tokens", 1), ("user", "requests/lifetime", 1)]
    {
        let line = format!("penstock_quota_shadow_refusals_total{{level=\"{level}\",limit=\"{limit}\"}} {count}");
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    let in_force: Vec<&str> = text.lines().filter(|line| line.starts_with("penstock_quota_refusals_total{")).collect();
    assert_eq!(in_force, ["penstock_quota_refusals_total{level=\"org\",limit=\"tokens/lifetime\"} 0"]);

    // In force it goes on from what it counted.
    rig.edit(", shadow: true, limits: [{ requests", ", limits: [{ requests").expect("it can be loaded");
    let refused = rig.chat(&chat("")).await;
    assert!(refused.text().contains("requests/lifetime of user acme/web/ana: needed 1, left 0"), "{}", refused.text());
}
