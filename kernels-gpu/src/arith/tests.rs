use super::Width;

/// Every power of two, and FP32 values of every magnitude: subnormal, infinite and NaN too.
#[test]
fn powers_of_two_divide_by_a_product() {
    for hidden in (0..=16).map(|log2| 1u32 << log2) {
        let width = Width::new(hidden);
        assert!(width.inverse.is_some());
        for bits in (0..=u32::MAX).step_by(9973) {
            let sum = f32::from_bits(bits);
            let (found, expected) = (width.divide(sum), sum / hidden as f32);
            let same = found.to_bits() == expected.to_bits();
            assert!(same || sum.is_nan(), "{sum:e} / {hidden}: {found:e}");
        }
    }
    for hidden in [3, 12, 100, 65_535] {
        assert!(Width::new(hidden).inverse.is_none());
    }
}
