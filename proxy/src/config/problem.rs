//! What is wrong with a configuration file: where, which field, what, and how to cure it.

use std::fmt;

/// Line and column, both from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub line: u64,
    pub column: u64,
}

impl Place {
    pub(super) const START: Self = Self { line: 1, column: 1 };

    pub(super) fn of(location: serde_saphyr::Location) -> Self {
        Self { line: location.line().max(1), column: location.column().max(1) }
    }
}

/// Prints as `file:line:column: field: message; cure`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub file: String,
    pub place: Place,
    /// Path of the field, like `models[0].price.input`; empty for the file as a whole.
    pub field: String,
    pub message: String,
    pub cure: String,
}

impl Problem {
    pub(super) fn new(
        place: Place,
        field: impl Into<String>,
        message: impl Into<String>,
        cure: impl Into<String>,
    ) -> Self {
        Self { file: String::new(), place, field: field.into(), message: message.into(), cure: cure.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: ", self.file, self.place.line, self.place.column)?;
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        write!(f, "{}; {}", self.message, self.cure)
    }
}
