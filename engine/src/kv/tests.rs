use proptest::prelude::*;

use super::*;
use crate::backend::KvGroup;

fn cache(windows: &[Option<u32>], total_blocks: u32) -> KvCache {
    let groups = windows.iter().map(|window| KvGroup { layers: vec![0], window: *window }).collect();
    KvCache::new(&Spec {
        vocab_size: 100,
        context_length: 4096,
        kv: KvLayout { groups, total_blocks, bytes_per_block: 1 },
        numerics_id: "test".to_owned(),
        model_digest: [0; 32],
    })
}

fn prompt(len: u32, first: u32) -> Vec<u32> {
    (0..len).map(|i| first + i % 90).collect()
}

/// Computes `tokens` in one go and gives the blocks back.
fn run(cache: &mut KvCache, salt: &str, tokens: &[u32]) -> u32 {
    let (mut blocks, hit) = cache.open(salt, tokens, Reuse::Prefix);
    assert!(cache.grow(&mut blocks, tokens.len() as u32));
    cache.commit(&mut blocks, tokens, tokens.len() as u32);
    cache.close(blocks);
    hit
}

#[test]
fn a_repeated_prompt_is_found_except_its_last_token() {
    let mut cache = cache(&[None], 16);
    assert_eq!(run(&mut cache, "", &prompt(64, 0)), 0);
    assert_eq!(run(&mut cache, "", &prompt(64, 0)), 48);
    assert_eq!(run(&mut cache, "", &prompt(65, 0)), 64);
}

#[test]
fn another_salt_or_another_beginning_finds_nothing() {
    let mut cache = cache(&[None], 32);
    run(&mut cache, "a", &prompt(64, 0));
    assert_eq!(run(&mut cache, "b", &prompt(64, 0)), 0);
    assert_eq!(run(&mut cache, "a", &prompt(64, 1)), 0);
}

#[test]
fn prompt_scoring_reads_nothing_but_leaves_its_blocks() {
    let mut cache = cache(&[None], 16);
    run(&mut cache, "", &prompt(64, 0));
    let (blocks, hit) = cache.open("", &prompt(64, 0), Reuse::Nothing);
    assert_eq!(hit, 0);
    cache.close(blocks);
}

#[test]
fn a_window_group_needs_only_its_last_window() {
    // Window 32: after 96 positions the group holds blocks 4 and 5 (position 96 sees 65..). The global group holds 6.
    let mut cache = cache(&[None, Some(32)], 64);
    let tokens = prompt(97, 0);
    let (mut blocks, _) = cache.open("", &tokens, Reuse::Prefix);
    assert!(cache.grow(&mut blocks, 97));
    cache.commit(&mut blocks, &tokens, 97);
    let tables = blocks.tables(97);
    assert_eq!(tables[1].iter().filter(|id| **id == BlockId::NONE).count(), 4);
    assert_eq!(tables[0].iter().filter(|id| **id == BlockId::NONE).count(), 0);
    cache.close(blocks);
    let (blocks, hit) = cache.open("", &tokens, Reuse::Prefix);
    assert_eq!(hit, 96);
    assert_eq!(blocks.tables(96)[1].iter().filter(|id| **id != BlockId::NONE).count(), 2);
    cache.close(blocks);
}

#[test]
fn a_hit_ends_where_a_window_block_was_evicted() {
    let mut cache = cache(&[None, Some(32)], 13);
    run(&mut cache, "", &prompt(96, 0));
    // 12 blocks are cached, the four oldest of the window group first in line. Another sequence takes the empty
    // block and three of those four.
    run(&mut cache, "", &prompt(32, 50));
    assert_eq!(run(&mut cache, "", &prompt(97, 0)), 96);
    // 97 positions took one more of each group: nothing of the window at 32 positions is left.
    assert_eq!(run(&mut cache, "", &prompt(33, 0)), 0);
}

#[test]
fn blocks_out_of_the_window_are_taken_before_cached_ones() {
    let mut cache = cache(&[Some(32)], 8);
    let long = prompt(112, 0);
    run(&mut cache, "", &long);
    // Seven blocks named, five of them out of the window. One empty and four of those are taken.
    run(&mut cache, "", &prompt(80, 40));
    assert_eq!(run(&mut cache, "", &prompt(113, 0)), 112);
}

#[test]
fn growth_is_all_or_nothing() {
    let mut cache = cache(&[None, None], 3);
    let (mut blocks, _) = cache.open("", &[1], Reuse::Prefix);
    assert!(!cache.grow(&mut blocks, 17));
    assert_eq!(cache.usage().used, 0);
    assert!(cache.grow(&mut blocks, 16));
    assert_eq!(cache.usage().used, 2);
    cache.close(blocks);
}

#[test]
fn the_longest_sequence_is_what_the_pool_can_hold() {
    let cache = cache(&[None, Some(32)], 10);
    let longest = cache.longest(4096, 16);
    // The window group holds at most (32 + 16) / 16 + 1 = 4 blocks, which leaves 6 for the other.
    assert_eq!(longest, 96);
    assert_eq!(cache.longest(50, 16), 50);
}

#[derive(Clone, Debug)]
enum Step {
    Open { family: u32, len: u32, reuse: bool },
    Advance { which: usize, by: u32 },
    Close { which: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => (0_u32..3, 1_u32..200, any::<bool>()).prop_map(|(family, len, reuse)| Step::Open { family, len, reuse }),
        5 => (any::<usize>(), 1_u32..60).prop_map(|(which, by)| Step::Advance { which, by }),
        1 => any::<usize>().prop_map(|which| Step::Close { which }),
    ];
    prop::collection::vec(step, 1..80)
}

struct Live {
    tokens: Vec<u32>,
    computed: u32,
    blocks: SequenceBlocks,
}

/// Every held block is held exactly as often as tables name it, and each sequence sees its window.
fn check(cache: &KvCache, live: &[Live]) -> Result<(), TestCaseError> {
    let mut refs = std::collections::HashMap::new();
    for sequence in live {
        for (group, table) in sequence.blocks.tables.iter().enumerate() {
            let visible = first_visible_block(sequence.computed, cache.windows[group]).min(table.len());
            prop_assert!(table[visible..].iter().all(|id| *id != BlockId::NONE));
            prop_assert!(table[..sequence.blocks.dropped[group]].iter().all(|id| *id == BlockId::NONE));
            for id in table.iter().filter(|id| **id != BlockId::NONE) {
                *refs.entry(*id).or_insert(0_u32) += 1;
            }
        }
    }
    for id in (0..cache.pool.total()).map(BlockId) {
        prop_assert_eq!(cache.pool.refs(id), refs.get(&id).copied().unwrap_or(0), "block {:?}", id);
    }
    prop_assert_eq!(cache.usage().used as usize, refs.len());
    prop_assert!(cache.usage().cached + cache.usage().used <= cache.usage().total);
    Ok(())
}

proptest! {
    #[test]
    fn blocks_are_conserved(
        windows in prop::collection::vec(prop_oneof![Just(None), (1_u32..80).prop_map(Some)], 1..4),
        total in 8_u32..60,
        steps in steps(),
    ) {
        let mut cache = cache(&windows, total);
        let mut live: Vec<Live> = Vec::new();
        for step in steps {
            match step {
                Step::Open { family, len, reuse } => {
                    let tokens = prompt(len, family);
                    let reuse = if reuse { Reuse::Prefix } else { Reuse::Nothing };
                    let (blocks, computed) = cache.open("", &tokens, reuse);
                    prop_assert!(computed < len);
                    live.push(Live { tokens, computed, blocks });
                }
                Step::Advance { which, by } if !live.is_empty() => {
                    let index = which % live.len();
                    let sequence = &mut live[index];
                    let to = (sequence.computed + by).min(sequence.tokens.len() as u32);
                    if cache.grow(&mut sequence.blocks, to) {
                        sequence.computed = to;
                        cache.commit(&mut sequence.blocks, &sequence.tokens, to);
                    }
                }
                Step::Close { which } if !live.is_empty() => {
                    let index = which % live.len();
                    cache.close(live.swap_remove(index).blocks);
                }
                _ => {}
            }
            check(&cache, &live)?;
        }
        live.drain(..).for_each(|sequence| cache.close(sequence.blocks));
        prop_assert_eq!(cache.usage().used, 0);
    }
}
