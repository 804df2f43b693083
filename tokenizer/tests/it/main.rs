//! The crate's surface, against golden data of an independent implementation and on the two real vocabularies.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod chat;
mod detokenizer;
mod fixture;
mod golden;
mod loading;
mod openai;
mod robust;
mod speed;
