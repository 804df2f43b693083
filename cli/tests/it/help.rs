//! Every command explains itself with an example, and wrong usage is told from failure by the exit code.

use crate::penstock::Penstock;

const COMMANDS: &[&[&str]] = &[&[], &["model"], &["model", "pull"], &["model", "list"], &["bench"]];

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
    for args in [&["bogus"][..], &["model", "pull"], &["model", "pull", "smollm2", "--sha256", "12"], &["model"]] {
        Penstock::new().run(args).failed(2, &["--help"]);
    }
}
