//! How much a call holds, and what becomes of one that uses more, by what its rules say.

/// What the limits of a rule mean for a call that has used up its hold and goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overrun {
    /// It goes on, and what it uses beyond is debt.
    #[default]
    Charge,
    /// A stream goes on while more can be held for it, and is ended when nothing is left.
    Stop,
}

/// How the limits of a rule meet a call.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Holding {
    /// A call holds what its like have used, not all that it may use. Refused more, it goes on up to so many times what
    /// it holds. `None`: the worst case is held.
    pub calibrated: Option<f64>,
    pub overrun: Overrun,
}

impl Holding {
    /// Of two rules that a call must pass.
    #[must_use]
    pub fn stricter(self, other: Self) -> Self {
        let stops = [self.overrun, other.overrun].contains(&Overrun::Stop);
        Self {
            calibrated: self.calibrated.zip(other.calibrated).map(|(cap, other)| cap.min(other)),
            overrun: if stops { Overrun::Stop } else { Overrun::Charge },
        }
    }
}

/// Which limits may refuse an extension. The others take it whatever they hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bind {
    All,
    /// Those of rules with [`Overrun::Stop`].
    Stops,
}
