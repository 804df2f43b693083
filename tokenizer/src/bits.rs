//! A set of small numbers, a bit each.

#[derive(Clone, Debug, Default)]
pub(crate) struct Bits(Vec<u64>);

impl Bits {
    /// Empty, with room for numbers up to `most`.
    pub(crate) fn up_to(most: usize) -> Self {
        Self(vec![0; most / 64 + 1])
    }

    pub(crate) fn clear(&mut self, most: usize) {
        self.0.clear();
        self.0.resize(most / 64 + 1, 0);
    }

    #[inline]
    pub(crate) fn holds(&self, number: usize) -> bool {
        self.0[number / 64] >> (number % 64) & 1 == 1
    }

    pub(crate) fn add(&mut self, number: usize) {
        self.0[number / 64] |= 1 << (number % 64);
    }
}
