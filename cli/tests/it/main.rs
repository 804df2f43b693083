//! The `penstock` binary as a person meets it: exit codes, help, model files.

mod help;
mod http_server;
mod model;
mod penstock;
