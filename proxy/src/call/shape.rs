//! Where the fields of a request body stand that others count or change. Reading them is `fields`' part.

use std::ops::Range;

/// Where the fields stand in the body that others count or change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    pub model: Option<Range<usize>>,
    pub stream_options: Option<Range<usize>>,
    /// `messages`, `prompt` or `input`.
    pub prompt: Option<Range<usize>>,
    pub tools: Option<Range<usize>>,
    pub tool_choice: Option<Range<usize>>,
    pub functions: Option<Range<usize>>,
    pub function_call: Option<Range<usize>>,
    pub response_format: Option<Range<usize>>,
    /// What a completion has to lead to.
    pub suffix: Option<Range<usize>>,
    pub cache_salt: Option<Range<usize>>,
}

impl Shape {
    /// Bytes of everything that costs prompt tokens.
    pub fn counted(&self) -> usize {
        let fields = [
            &self.prompt,
            &self.tools,
            &self.tool_choice,
            &self.functions,
            &self.function_call,
            &self.response_format,
            &self.suffix,
        ];
        fields.into_iter().flatten().map(Range::len).sum()
    }
}
