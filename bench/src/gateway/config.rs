//! The gateway's config for the run: sixteen users of four apps in two orgs, limits of tokens, requests and concurrency
//! at each of the four levels, none of which the load can reach.

pub const MODEL: &str = "mock-model";

const ORGS: usize = 2;
const APPS: usize = 4;
const USERS: usize = 16;

pub fn keys() -> Vec<String> {
    (0..USERS).map(|user| format!("sk-bench-{user:02}")).collect()
}

pub fn yaml(listen: &str, admin: &str, upstream: &str, store: &str, quotas: bool) -> String {
    let mut yaml = format!(
        "listen: {listen}\nadmin: {admin}\nstore: {store}\ndata_dir: ./penstock-data\nmodels:\n  - name: {MODEL}\n    \
         tokenizer: o200k_base\n    default_max_tokens: 1024\n    price: {{ input: 0.15, output: 0.60 }}\n    \
         upstreams:\n      - {{ name: mock, url: \"http://{upstream}/v1\", api_key: bench }}\nkeys:\n"
    );
    for (user, key) in keys().iter().enumerate() {
        let (app, org) = (user % APPS, user % ORGS);
        yaml.push_str(&format!("  - {{ secret: {key}, user: user-{user}, app: app-{app}, org: org-{org} }}\n"));
    }
    if quotas {
        yaml.push_str("quotas:\n");
        for level in ["user", "app", "org", "global"] {
            let subject = if level == "global" { "" } else { "    match: \"*\"\n" };
            yaml.push_str(&format!(
                "  - level: {level}\n{subject}    limits:\n      - {{ tokens: 1000000000000, per: minute }}\n      \
                 - {{ requests: 1000000000, per: minute }}\n      - {{ concurrency: 100000 }}\n"
            ));
        }
    }
    yaml
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_levels_hold_three_limits_each_and_only_global_has_no_match() {
        let yaml = yaml("l", "a", "u", "redis://r/0", true);
        for (text, times) in [("level: ", 4), ("tokens: ", 5), ("requests: ", 4), ("concurrency: ", 4), ("match: ", 3)]
        {
            assert_eq!(yaml.matches(text).count(), times, "{text}\n{yaml}");
        }
        assert_eq!(yaml.matches("secret: ").count(), USERS);
        assert!(!super::yaml("l", "a", "u", "memory", false).contains("quotas"));
    }

    #[test]
    fn an_app_belongs_to_one_org() {
        // Subjects are paths, so an app name under two orgs would be two accounts.
        assert_eq!(APPS % ORGS, 0);
    }
}
