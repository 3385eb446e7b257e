"""What a model needs, does and costs on GPUs, worked out before anything is bought or rented.

GB are 10⁹ bytes throughout, TFLOPS 10¹² operations a second, a multiplication and an addition counted as two.
"""
