//! New keys into the slot table of the key index: see `store/keys/key_links.py`.

use crate::fields::array_at;

pub struct Linked {
    pub items: Vec<u8>,
    pub used: usize,
}

/// Link *keys* into *table* and return their items; None if the arguments do not fit together.
pub fn link(
    table: &mut [u8],
    dirty: &mut [u8],
    block_slots: usize,
    keys: &[u8],
    known: i32,
    begin_ms: i64,
) -> Option<Linked> {
    let count = keys.len() / 24;
    let slots = table.len() / 4;
    let blocks = slots.div_ceil(block_slots.max(1));
    let end = i32::try_from(count).ok().and_then(|count| known.checked_add(count))?;
    if block_slots == 0 || slots == 0 || dirty.len() < blocks || known < 1 || !keys.len().is_multiple_of(24) {
        return None;
    }
    let mut linked = Linked { items: Vec::with_capacity(count.saturating_mul(20)), used: 0 };
    let (triples, _) = keys.as_chunks::<24>();
    // Nothing is changed unless every key fits.
    if !triples.iter().all(|triple| number_at(triple, 0).is_some_and(|hash| (0..1 << 31).contains(&hash))) {
        return None;
    }
    for (number, triple) in (known..end).zip(triples) {
        let (hash, position, store_ms) = (number_at(triple, 0)?, number_at(triple, 8)?, number_at(triple, 16)?);
        let slot = usize::try_from(hash).ok()?.checked_rem(slots)?;
        let at = slot.checked_mul(4)?;
        let head = table.get_mut(at..)?.first_chunk_mut::<4>()?;
        let mut previous = i32::from_be_bytes(*head);
        if !(1..number).contains(&previous) {
            previous = 0;
            linked.used = linked.used.saturating_add(1);
        }
        *head = number.to_be_bytes();
        *dirty.get_mut(slot.checked_div(block_slots)?)? = 1;
        let seconds = store_ms.saturating_sub(begin_ms).max(0).checked_div(1000)?.min(i64::from(i32::MAX));
        linked.items.extend_from_slice(&i32::try_from(hash).ok()?.to_be_bytes());
        linked.items.extend_from_slice(&position.to_be_bytes());
        linked.items.extend_from_slice(&i32::try_from(seconds).ok()?.to_be_bytes());
        linked.items.extend_from_slice(&previous.to_be_bytes());
    }
    Some(linked)
}

fn number_at(triple: &[u8], at: usize) -> Option<i64> {
    array_at(triple, at).map(i64::from_ne_bytes)
}
