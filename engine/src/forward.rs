//! A transformer as a sequence of fused operations, the same for every backend. What an operation does with which
//! weights, and where activations and KV live, is the backend's.

/// The operations of one step over all of its rows. Activations stay inside; each call leaves them for the next.
pub trait Ops {
    type Error;

    /// Token rows of the embedding become the residual stream.
    fn embed(&mut self) -> Result<(), Self::Error>;
    /// Norm, Q, K and V with their own norms and RoPE; K and V go to the cache.
    fn attn_in(&mut self, layer: usize) -> Result<(), Self::Error>;
    /// Every row attends to its sequence's cache.
    fn attend(&mut self, layer: usize) -> Result<(), Self::Error>;
    /// Output projection and its norm, added to the residual stream.
    fn attn_out(&mut self, layer: usize) -> Result<(), Self::Error>;
    /// Norm, gated feed-forward and its norm, added to the residual stream.
    fn ffn(&mut self, layer: usize) -> Result<(), Self::Error>;
    /// Final norm and logits of the rows that sample, and the sampling itself.
    fn head(&mut self) -> Result<(), Self::Error>;
}

pub fn forward<O: Ops>(ops: &mut O, layers: usize) -> Result<(), O::Error> {
    ops.embed()?;
    for layer in 0..layers {
        ops.attn_in(layer)?;
        ops.attend(layer)?;
        ops.attn_out(layer)?;
        ops.ffn(layer)?;
    }
    ops.head()
}
