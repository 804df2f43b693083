//! What a user gets wrong is answered in words that name the cause, and never by a crash: requests, model files,
//! configuration, ports, stores, disks.

mod models;
mod requests;
mod surroundings;
