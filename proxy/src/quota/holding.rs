//! What becomes of a call that uses more than it held, by what its rules say.

/// What the limits of a rule mean for a call that has used up its hold and goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overrun {
    /// It goes on, and what it uses beyond is debt.
    #[default]
    Charge,
    /// A stream goes on while more can be held for it, and is ended when nothing is left.
    Stop,
}

/// How the limits of a rule meet a call that runs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Holding {
    pub overrun: Overrun,
}

/// Which limits may refuse an extension. The others take it whatever they hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bind {
    All,
    /// Those of rules with [`Overrun::Stop`].
    Stops,
}
