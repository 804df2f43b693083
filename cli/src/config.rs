//! `penstock config`: the schema of the gateway's YAML, and a check of one file. Also the one place that reads such a
//! file, for `serve` and `up`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::{Args as ClapArgs, Subcommand};
use proxy::config::{Config, Problem};
use serde_json::{Value, json};

use crate::{environment, output};

const CHECK_EXAMPLE: &str = "\
Examples:
  penstock config check penstock.yaml
  penstock config check penstock.yaml --json";

/// Check a gateway configuration, or print its JSON Schema
#[derive(Debug, ClapArgs)]
#[command(after_help = "Example: penstock config check penstock.yaml")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print the JSON Schema of the file, for editors
    #[command(after_help = "Example: penstock config schema > penstock.schema.json")]
    Schema,
    /// Say what is wrong with a file: each problem with its place, its field and the cure
    #[command(after_help = CHECK_EXAMPLE)]
    Check {
        file: PathBuf,
        /// Print problems and warnings as JSON
        #[arg(long)]
        json: bool,
    },
}

pub fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Schema => output::json(&proxy::config::schema()),
        Command::Check { file, json: false } => {
            load(&file)?;
            output::line(&format!("{}: ok", file.display()))
        }
        Command::Check { file, json: true } => check_json(&file),
    }
}

/// Reads and checks a file. Warnings are shown; problems are shown and end the command.
pub fn load(file: &Path) -> anyhow::Result<Config> {
    match check(file)? {
        Ok(config) => {
            config.warnings.iter().for_each(|warning| output::note(&format!("warning: {warning}")));
            Ok(config)
        }
        Err(problems) => {
            problems.iter().for_each(|problem| output::note(&problem.to_string()));
            Err(output::Shown.into())
        }
    }
}

fn check(file: &Path) -> anyhow::Result<Result<Config, Vec<Problem>>> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(check_text(&text, file))
}

/// `file` is only for messages.
pub fn check_text(text: &str, file: &Path) -> Result<Config, Vec<Problem>> {
    proxy::config::check(text, &file.display().to_string(), &environment::all())
}

fn check_json(file: &Path) -> anyhow::Result<()> {
    let checked = check(file)?;
    let (problems, warnings) = match &checked {
        Ok(config) => (&[][..], &config.warnings[..]),
        Err(problems) => (&problems[..], &[][..]),
    };
    let list = |problems: &[Problem]| problems.iter().map(in_json).collect::<Vec<_>>();
    output::json(&json!({ "ok": checked.is_ok(), "problems": list(problems), "warnings": list(warnings) }))?;
    if checked.is_ok() { Ok(()) } else { Err(output::Shown.into()) }
}

fn in_json(problem: &Problem) -> Value {
    let Problem { file, place, field, message, cure } = problem;
    json!({ "file": file, "line": place.line, "column": place.column, "field": field, "message": message, "cure": cure })
}
