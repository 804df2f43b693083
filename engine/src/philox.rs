//! Counter-based randomness: Philox4x32-10 (Salmon et al., SC 2011). A draw depends on its counter alone, so batch,
//! preemption, prefix hits and speculation cannot change it. No state lives here.

const ROUNDS: u32 = 10;
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Uniform in [0, 1) with 53 random bits, for the token that will stand at `position`.
pub fn uniform(seed: u64, choice: u32, position: u32) -> f64 {
    let block = philox4x32([position, choice, 0, 0], [seed as u32, (seed >> 32) as u32]);
    let bits = (u64::from(block[0]) << 32) | u64::from(block[1]);
    (bits >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
}

fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let a = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let b = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        counter = [(b >> 32) as u32 ^ counter[1] ^ key[0], b as u32, (a >> 32) as u32 ^ counter[3] ^ key[1], a as u32];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_known_answers_of_the_reference_implementation_hold() {
        assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox4x32([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            philox4x32([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn each_coordinate_changes_the_draw() {
        let base = uniform(1, 0, 5);
        assert!(
            [uniform(2, 0, 5), uniform(1 << 40, 0, 5), uniform(1, 1, 5), uniform(1, 0, 6)].iter().all(|u| *u != base)
        );
        assert_eq!(base, uniform(1, 0, 5));
    }
}
