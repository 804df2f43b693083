//! Every command explains itself with an example, and wrong usage is told from failure by the exit code.

use crate::penstock::Penstock;

const COMMANDS: &[&[&str]] = &[
    &[],
    &["up"],
    &["serve"],
    &["engine"],
    &["config"],
    &["config", "check"],
    &["config", "schema"],
    &["model"],
    &["model", "pull"],
    &["model", "list"],
    &["quota"],
    &["quota", "show"],
    &["quota", "check"],
    &["quota", "replay"],
    &["quota", "parity"],
    &["bench"],
    &["bench", "gateway"],
    &["bench", "quota"],
    &["bench", "count"],
    &["bench", "engine"],
];

#[test]
fn every_command_has_help_with_an_example() {
    for command in COMMANDS {
        let help = Penstock::new().run(command.iter().chain(&["--help"])).ok().stdout;
        insta::with_settings!({ snapshot_path => "snapshots", prepend_module_to_snapshot => false }, {
            insta::assert_snapshot!(format!("help{}", command.iter().map(|c| format!("-{c}")).collect::<String>()), help);
        });
        assert!(command.is_empty() || help.contains("Example"), "{command:?} shows no example");
    }
}

#[test]
fn wrong_usage_exits_with_2() {
    for args in [
        &["bogus"][..],
        &["model"],
        &["model", "pull"],
        &["model", "pull", "smollm2", "--sha256", "12"],
        &["serve"],
        &["engine"],
        &["engine", "--model", "x.gguf", "--threads", "0"],
        &["engine", "--model", "x.gguf", "--listen", "nowhere"],
        &["up", "--listen", "8080"],
        &["quota", "check"],
    ] {
        Penstock::new().run(args).failed(2, &["--help"]);
    }
}
