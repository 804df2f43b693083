//! The `penstock` binary as a person meets it: exit codes, help, model files, configuration, starts that fail.

mod config;
mod engine;
mod help;
mod http_server;
mod model;
mod penstock;
mod pypi;
mod quota;
mod serve;
mod up;
