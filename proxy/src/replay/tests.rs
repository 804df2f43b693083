//! What a log becomes under other quotas, call by call.

use wire::access::{self, Decision, Timing};

use super::*;

fn config(quotas: &str) -> Config {
    let text = format!(
        "models: [{{ name: m, aliases: [alias], upstreams: [{{ name: a, url: 'http://h/v1' }}] }}]\n\
         keys: [{{ secret: k, org: acme, app: web, user: ana }}]\nquotas: [{quotas}]\n"
    );
    crate::config::check(&text, "p.yaml", &HashMap::new()).unwrap_or_else(|problems| panic!("{text}\n{problems:#?}"))
}

/// A call at `ms` that lasts a second, holds 100 tokens and used `used` of them.
fn line(ms: u64, user: &str, outcome: Ended, used: Option<u64>) -> Entry {
    Entry {
        v: access::VERSION,
        ts_ms: 1_780_315_200_000 + ms,
        request_id: "r".into(),
        who: Who { org: Some("acme".into()), app: Some("web".into()), user: Some(user.into()), tier: None },
        model: "alias".into(),
        served_model: Some("m".into()),
        upstream: Some("a".into()),
        endpoint: "/chat/completions".into(),
        stream: false,
        status: 200,
        decision: Decision::new(outcome),
        demand: Some(access::Demand { prompt: 10, max_output: 90, held_output: None, nano_usd: 0 }),
        usage: used.map(|used| Usage { prompt: 10, completion: used - 10, cached: 0 }),
        estimated: false,
        timing: Timing { e2e_ms: 1000.0, ..Timing::default() },
    }
}

fn replay(quotas: &str, lines: &[Entry]) -> Report {
    let mut replay = Replay::new(&config(quotas));
    lines.iter().for_each(|line| replay.read(line));
    replay.run()
}

fn brief(rows: &[Refusals]) -> Vec<String> {
    let brief = |r: &Refusals| {
        let (first, last) = (r.first_ms - 1_780_315_200_000, r.last_ms - 1_780_315_200_000);
        format!("{} {} {}: {} calls, {} tokens, {first}..{last}", r.level, r.limit, r.subject, r.calls, r.tokens)
    };
    rows.iter().map(brief).collect()
}

#[test]
fn holds_weigh_until_their_call_ends_and_then_what_it_used() {
    let quotas = "{ level: user, match: '*', limits: [{ tokens: 250, per: lifetime }] }";
    let done = |ms, user| line(ms, user, Ended::Finished, Some(20));
    // Out of order, as several gateways write it. At 200 two hold 200; at 1000 the first has given 80 back.
    let lines = [done(1000, "ana"), done(0, "ana"), done(100, "ana"), done(200, "ana"), done(200, "bo")];
    let report = replay(quotas, &lines);
    assert_eq!((report.calls, report.admitted, report.refused, report.newly_refused), (5, 4, 1, 1));
    assert_eq!(brief(&report.refusals), ["user tokens/lifetime acme/web/ana: 1 calls, 100 tokens, 200..200"]);
    assert_eq!(report.first_ms.zip(report.last_ms), Some((1_780_315_200_000, 1_780_315_201_000)));
}

#[test]
fn each_way_a_call_ended_weighs_as_it_did_in_the_gateway() {
    let quotas = "{ level: org, match: acme, limits: [{ requests: 2, per: lifetime }] }";
    let invalid = |line: Entry| Entry { demand: None, upstream: None, ..line };
    for (first, skipped, refused) in [
        (line(0, "ana", Ended::Finished, Some(20)), 0, 1),
        (line(0, "ana", Ended::Invalid, None), 0, 1),
        (line(0, "ana", Ended::Refused, None), 0, 1),
        (line(0, "ana", Ended::UpstreamDied, Some(20)), 0, 1),
        (line(0, "ana", Ended::UpstreamFailed, None), 0, 0),
        (line(0, "ana", Ended::ClientDisconnected, None), 0, 0),
        (line(0, "ana", Ended::StoreUnavailable, None), 1, 0),
        (line(0, "ana", Ended::Overloaded, None), 1, 0),
        (invalid(line(0, "ana", Ended::Invalid, None)), 1, 0),
        (Entry { model: "gone".into(), ..line(0, "ana", Ended::Finished, Some(20)) }, 1, 0),
    ] {
        let outcome = first.decision.outcome;
        let later = [2000, 4000].map(|ms| line(ms, "bo", Ended::Finished, Some(20)));
        let report = replay(quotas, &[vec![first], later.to_vec()].concat());
        assert_eq!((report.skipped, report.refused), (skipped, refused), "{outcome:?}");
    }
}

#[test]
fn what_the_log_shows_refused_is_charged_whole_when_it_fits_now() {
    let quotas = "{ level: org, match: acme, limits: [{ tokens: 199, per: lifetime }] }";
    let lines = [line(0, "ana", Ended::Refused, None), line(5000, "ana", Ended::Refused, None)];
    let report = replay(quotas, &lines);
    assert_eq!((report.newly_admitted, report.refused, report.newly_refused), (1, 1, 0));
}

#[test]
fn a_window_and_a_bucket_give_back_with_the_log_s_own_time() {
    let quotas = "{ level: org, match: acme, limits: [{ tokens: 120, per: minute }, { requests: 2, per: hour, window: calendar }] }";
    let done = |ms| line(ms, "ana", Ended::Finished, Some(100));
    let report = replay(quotas, &[done(0), done(30_000), done(60_000), done(61_000), done(3_600_000)]);
    assert_eq!(
        brief(&report.refusals),
        [
            "org requests/hour acme: 1 calls, 100 tokens, 61000..61000",
            "org tokens/minute acme: 1 calls, 100 tokens, 30000..30000",
        ]
    );
}

#[test]
fn a_lower_tier_is_refused_what_a_higher_one_keeps() {
    let text = "tiers: [{ name: premium, reserve: 0.2 }, { name: standard }]\n\
                models: [{ name: m, aliases: [alias], upstreams: [{ name: a, url: 'http://h/v1' }] }]\n\
                keys: [{ secret: k, org: acme }]\n\
                quotas: [{ level: org, match: acme, limits: [{ tokens: 249, per: lifetime }] }]\n";
    let config = crate::config::check(text, "p.yaml", &HashMap::new()).expect("valid");
    let of_tier = |tier: Option<&str>| {
        let mut entries = [0, 2000].map(|ms| line(ms, "ana", Ended::Finished, Some(100)));
        entries.iter_mut().for_each(|entry| entry.who.tier = tier.map(str::to_owned));
        let mut replay = Replay::new(&config);
        entries.iter().for_each(|entry| replay.read(entry));
        replay.run().refused
    };
    assert_eq!([Some("premium"), Some("standard"), Some("gone"), None].map(of_tier), [0, 1, 1, 1]);
}

#[test]
fn shadow_rules_are_told_apart() {
    let quotas = "{ level: org, match: acme, shadow: true, limits: [{ requests: 1, per: lifetime }, { max_request: { tokens: 99 } }] }";
    let report = replay(quotas, &[0, 2000].map(|ms| line(ms, "ana", Ended::Finished, Some(20))));
    assert_eq!((report.admitted, report.refused), (2, 0));
    assert_eq!(
        brief(&report.shadow_refusals),
        [
            "org max_request/tokens acme: 2 calls, 200 tokens, 0..2000",
            "org requests/lifetime acme: 1 calls, 100 tokens, 2000..2000",
        ]
    );
}

#[test]
fn under_a_calibrated_rule_calls_hold_what_the_log_says_and_else_the_worst_case() {
    let held = |ms, held_output| {
        let demand = line(ms, "ana", Ended::Finished, None).demand.map(|d| access::Demand { held_output, ..d });
        Entry { demand, ..line(ms, "ana", Ended::Finished, Some(20)) }
    };
    // Three at a time: 10 of prompt and what is held of 90.
    let lines = |held_output| [0, 100, 200].map(|ms| held(ms, held_output));
    for (rest, held_output, refused) in [
        (", hold: calibrated", Some(15), 0),
        (", hold: calibrated", None, 2),
        ("", Some(15), 2),
        (", { max_request: { tokens: 99 } }], hold: calibrated", Some(15), 3),
    ] {
        let end = if rest.contains(']') { rest.to_owned() } else { format!("]{rest}") };
        let quotas = format!("{{ level: org, match: acme, limits: [{{ tokens: 150, per: lifetime }}{end} }}");
        assert_eq!(replay(&quotas, &lines(held_output)).refused, refused, "{rest} {held_output:?}");
    }
}
