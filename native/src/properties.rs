//! A message's properties: `name 0x01 value 0x02 name 0x01 value 0x02 ...`; the last 0x02 may be missing.

use memchr::memchr;

const VALUE_END: u8 = 2;

/// Yields the pieces between the 0x02 bytes.
pub struct Pieces<'a> {
    rest: &'a [u8],
}

pub fn pieces(text: &[u8]) -> Pieces<'_> {
    Pieces { rest: text }
}

impl<'a> Iterator for Pieces<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.rest.is_empty() {
            return None;
        }
        let end = memchr(VALUE_END, self.rest).unwrap_or(self.rest.len());
        let (piece, rest) = self.rest.split_at_checked(end)?;
        self.rest = rest.get(1..).unwrap_or_default();
        Some(piece)
    }
}

/// Return the value of one property: of two with a value the later one. *marker* is its name with 0x01 appended.
pub fn find_by_marker<'a>(text: &'a [u8], marker: &[u8]) -> Option<&'a [u8]> {
    pieces(text).filter_map(|piece| piece.strip_prefix(marker)).filter(|value| !value.is_empty()).last()
}
