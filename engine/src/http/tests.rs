//! The HTTP face over real sockets, with a test backend that answers in letters. Real models are tested in `tests/it`.

mod chat;
mod completions;
mod errors;
mod fixture;
mod lifecycle;
