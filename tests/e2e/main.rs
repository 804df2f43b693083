//! Promises to users, kept against real processes. One file for each promise; the harness is the `tests` library.

mod clients;
