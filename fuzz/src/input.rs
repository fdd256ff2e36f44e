//! Reading an input piece by piece.

/// What is left of an input. Once it is used up, it goes on with zeros.
#[derive(Debug, Default)]
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    pub fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    pub fn number(&mut self) -> u64 {
        // Most numbers are to be small, and some on the edge.
        match self.byte() {
            0xff => u64::MAX,
            0xfe => i64::MAX as u64,
            0xfd => self.bytes(8).iter().fold(0, |number, &byte| number << 8 | u64::from(byte)),
            0xfc => u64::MAX - u64::from(self.byte()),
            small => u64::from(small),
        }
    }

    pub fn bytes(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Some bytes with their length before them.
    pub fn chunk(&mut self) -> &'a [u8] {
        let length = self.byte();
        self.bytes(length.into())
    }

    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }
}
